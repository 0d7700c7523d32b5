"""The native form: manifests stored in a Zarr v3 hierarchy, appended to and overlaid."""
