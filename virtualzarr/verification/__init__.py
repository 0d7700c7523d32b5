"""Verification of publications by other people's clients, each in a process of its own."""
