"""References in Icechunk repositories: reader and writer."""
