"""From an evaluation dataset to calibration records."""
