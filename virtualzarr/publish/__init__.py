"""Writing references that other tools open."""
