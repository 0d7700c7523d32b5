"""One module per foreign format; each scans a file's own index into a group of virtual arrays."""
