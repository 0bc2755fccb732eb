"""Helpers that all packages share, and the version, which the build reads from here."""

__version__ = "0.1.0"
