"""Private helpers that several packages share."""
