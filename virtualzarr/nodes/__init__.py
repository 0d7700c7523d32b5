"""Documents of stored nodes: read and written whole, with what is consolidated above them."""
