"""How long a step takes: clock, roofline and calibration."""
