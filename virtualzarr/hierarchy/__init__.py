"""Groups, and opening and creating the nodes of a Zarr hierarchy."""
