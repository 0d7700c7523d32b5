"""Files found, their formats detected, scanned and joined into one group."""
