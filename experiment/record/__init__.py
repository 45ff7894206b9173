"""Write, read, resume and verify the log of a run."""
