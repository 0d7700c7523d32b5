"""Arrays and groups shown to people: in text, and in HTML for notebooks."""
