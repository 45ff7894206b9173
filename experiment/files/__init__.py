"""Files: read within bounds, locked, and where caches and shipped files are."""
