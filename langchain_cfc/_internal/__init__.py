"""What all packages share and users need not know, and the version, which the build reads from here."""

__version__ = "0.1.0"
