"""``gpucheck``: one command that checks the engine on this machine's GPU and leaves an archive."""
