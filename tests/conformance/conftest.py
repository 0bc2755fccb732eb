"""The artifacts that all subjects serve with."""

from __future__ import annotations

import warnings

import pytest

from langchain_cfc.errors import AttainabilityWarning

# Its assertions are those of tests, though it is none by name.
pytest.register_assert_rewrite("tests.conformance.behaviours")

from .subject import Artifacts  # noqa: E402 - after that


@pytest.fixture(scope="session")
def artifacts() -> Artifacts:
    """For n = 4 candidates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttainabilityWarning)  # the hopeless one is meant to be
        return Artifacts()
