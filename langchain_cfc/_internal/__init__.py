"""What several packages share; nothing here is public."""
