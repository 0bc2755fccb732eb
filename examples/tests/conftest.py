"""Modules of an example can import each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def modules_of_example(request: pytest.FixtureRequest) -> Iterator[None]:
    """Modules of the folder `EXAMPLE` import each other by plain name, as scripts do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(request.module.EXAMPLE))
        yield
