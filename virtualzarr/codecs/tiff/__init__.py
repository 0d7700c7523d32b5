"""Strips and tiles of TIFF files."""
