"""Find, check and load the model of a run."""
