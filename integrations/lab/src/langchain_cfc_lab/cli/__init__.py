"""Commands that langchain-cfc-lab adds to `langchain-cfc`."""
