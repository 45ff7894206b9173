"""The arms: one process each, one file a kind, all behind :func:`experiment.arms.base.ArmRun`."""
