"""Collect through providers' batches: half the price, within 24 hours."""
