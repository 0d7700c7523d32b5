"""Codecs of numcodecs and imagecodecs."""
