"""Commands that langchain-cfc-collect adds to `langchain-cfc`."""
