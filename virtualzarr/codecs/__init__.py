"""How bytes become blocks of elements and back: codecs, their registry, and pipelines of them."""
