"""Many steps at once, held equal to the plain path by tests."""
