"""Collect through providers' batch interfaces, at half the price and within 24 hours."""
