"""Representations of arrays and groups for people: text, and HTML for notebooks."""
