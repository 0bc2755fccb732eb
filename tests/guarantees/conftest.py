"""The laws of thresholds are about sets that follow their thresholds alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.factories import leave_sets_empty


@pytest.fixture(scope="module", autouse=True)
def sets_follow_thresholds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave sets empty that no candidate reaches, except in `test_never_empty`.

    Sets that are never empty hold these sets, under the same flags. With them coverage exceeds its exact
    laws, and makes up for what a control breaks.
    """
    with pytest.MonkeyPatch.context() as patched:
        if not request.module.__name__.endswith("test_never_empty"):
            leave_sets_empty(patched)
        yield
