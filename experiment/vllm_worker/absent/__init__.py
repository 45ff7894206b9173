"""Libraries that some of vLLM's model classes import, and no cache depends on."""
