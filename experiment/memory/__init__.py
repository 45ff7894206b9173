"""Memory channels, and the sampler that reads them while an arm runs."""
