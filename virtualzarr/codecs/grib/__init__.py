"""Fields and grids of GRIB messages."""
