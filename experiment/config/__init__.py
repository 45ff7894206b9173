"""What a run is asked to do."""
