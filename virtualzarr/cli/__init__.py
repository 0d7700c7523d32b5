"""The virtualzarr command."""
