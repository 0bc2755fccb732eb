"""Read the rows of an evaluation dataset, and turn them into examples.

A source is a file (JSON Lines, a JSON list, CSV, Parquet), a plugin source (`SCHEME:REST`) of another
distribution, or any iterable of mappings, such as a Hugging Face dataset. `Columns` says what its columns
mean; `read_examples` combines the two.
"""
