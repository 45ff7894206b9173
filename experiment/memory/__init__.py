"""Ways of measuring memory, and the sampler that uses them while an arm runs."""
