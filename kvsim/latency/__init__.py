"""Duration of a step: clock, roofline and calibration."""
