"""Facts about the machine, and background load."""
