"""Two runs side by side, baselines of counted figures, and gates on them."""
