"""Pages of commands other than ``run``, and the index of all reports."""
