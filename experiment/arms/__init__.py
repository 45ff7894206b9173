"""The arms: ways of running the same requests, one process each; see :class:`ArmRun`."""
