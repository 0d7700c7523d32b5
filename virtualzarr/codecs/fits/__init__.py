"""Tiles and tables of FITS files."""
