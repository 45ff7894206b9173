"""What reports show, as messages, numbers and cells of text, for consoles and pages alike."""
