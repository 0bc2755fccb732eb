"""The behaviours over scripted answers, in memory and over HTTP, and with both ways to ask for candidates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from langchain_cfc.sampling import SamplingName

from .behaviours import HTTPBehaviours, ScriptedBehaviours
from .providers import InMemory, OverHTTP
from .subject import Artifacts, Subject

both_strategies = pytest.mark.parametrize("sampling", ["requests", "single_request"])
# In memory the quick tests have both.
both_strategies_if_long = pytest.mark.parametrize(
    "sampling", ["requests", pytest.param("single_request", marks=pytest.mark.long)]
)


@both_strategies
class TestInMemory(ScriptedBehaviours):
    """A chat model in this process, which streams wherever it is let."""

    @pytest.fixture
    def subject(self, artifacts: Artifacts, sampling: SamplingName) -> Subject:
        return Subject(InMemory(), sampling, artifacts)


@both_strategies_if_long
class TestOverHTTP(HTTPBehaviours):
    """`ChatOpenAI` before a real server."""

    @pytest.fixture
    def subject(self, artifacts: Artifacts, sampling: SamplingName) -> Iterator[Subject]:
        with OverHTTP.started() as provider:
            yield Subject(provider, sampling, artifacts)
