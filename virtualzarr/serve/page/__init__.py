"""The page for people: what a dataset is, pictures of its variables, and how to open it."""
