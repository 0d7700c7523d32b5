"""Fuzzing of scanners: files that were made to do harm give an error, or what is right."""
