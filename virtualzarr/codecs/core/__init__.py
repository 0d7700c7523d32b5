"""The codec contract, pipelines, the registry, and codecs made ready for one block."""
