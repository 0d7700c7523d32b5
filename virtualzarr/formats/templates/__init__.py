"""Templates: recorded scans, by which files that are alike are scanned without being parsed."""
