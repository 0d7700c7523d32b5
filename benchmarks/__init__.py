"""Side by side with the other tools: ``python -m benchmarks``."""
