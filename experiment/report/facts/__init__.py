"""Contents of reports as messages, numbers and cells of text, shared by consoles and pages."""
