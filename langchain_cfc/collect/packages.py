"""What must be installed before a collection can begin."""

from __future__ import annotations

from langchain_cfc._extras import check_installed
from langchain_cfc.sampling.models import packages_of


def check_packages(model: str | None = None) -> None:
    """Check that what a collection needs is installed, so that one error names all that is missing.

    Args:
        model: Name of the model that draws, such as `openai:gpt-4o-mini`; None if it is not given by name.

    Raises:
        MissingExtraError: If a package is missing; the message names the command that installs all of them.
    """
    needed = {"filelock": "collect", "sqlalchemy": "collect"}
    check_installed({**needed, **(packages_of(model) if model is not None else {})}, "a collection")
