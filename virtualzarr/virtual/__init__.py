"""Arrays made of other arrays without reading: slices, transposes, other cells, padding."""
