"""Archives: what is in many files, told without joining them, and a ledger of what was scanned."""
