"""Commands of the command line, and exit codes."""
