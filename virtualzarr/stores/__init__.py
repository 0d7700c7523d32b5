"""Where bytes come from: keys, byte ranges, and planning how to fetch many of them."""
