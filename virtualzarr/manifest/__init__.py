"""Where each chunk of a virtual array lies: sources, columns of references, decoders."""
