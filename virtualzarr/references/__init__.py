"""References published for other readers, in all their forms, and what changes them later."""
