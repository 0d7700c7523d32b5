"""The commands, one module each: every one adds its arguments to the parser and runs itself."""
