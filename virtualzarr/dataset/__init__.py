"""Datasets with versions: commits, history, and rows that come, change and go."""
