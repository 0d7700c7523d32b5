"""The native form: manifests kept in a Zarr v3 hierarchy, which grow and can be written over."""
