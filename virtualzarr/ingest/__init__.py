"""Opening and virtualizing: format detection, file search, scans and their combination."""
