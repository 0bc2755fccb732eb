"""Commands that langchain-cfc-monitor adds to `langchain-cfc`."""
