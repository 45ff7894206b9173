"""Run the processes of a run, one after another or interleaved."""
