"""The read engine: planning, fetching, decoding into the output, and the chunk cache."""
