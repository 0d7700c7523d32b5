"""What users hold: arrays, and how a selection is read from chunks."""
