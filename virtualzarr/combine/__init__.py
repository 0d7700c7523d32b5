"""Joining arrays and groups without copying."""
