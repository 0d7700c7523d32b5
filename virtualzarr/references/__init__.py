"""References published for other readers: every form behind one protocol, and their upkeep."""
