"""An arm's log, replayed step by step."""
