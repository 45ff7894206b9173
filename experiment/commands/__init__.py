"""The commands: words to calls, and exit codes."""
