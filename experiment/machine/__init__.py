"""What the machine has, and how busy other programs keep it."""
