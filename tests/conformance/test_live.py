"""The behaviours over a real model on this machine, whose answers are not known beforehand."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from langchain_cfc.sampling import SamplingName
from tests.fakes import N
from tests.scripts import load_module

from .behaviours import Behaviours
from .providers import Live
from .subject import Artifacts, Subject

PROGRAM = Path(__file__).parents[2] / "examples" / "local_model" / "local_model.py"


def local_model() -> ModuleType:
    """The example that fetches and serves a model; it is a program, and in no package."""
    return load_module(PROGRAM)


def installed() -> bool:
    """Whether there is a model, and what serves it."""
    example = local_model()
    folder: Path = example.DEFAULT_FOLDER.expanduser()
    served = importlib.util.find_spec("xllamacpp") is not None
    return served and (folder / f"{example.MODEL_NAME}.gguf").is_file()


@pytest.fixture(scope="module")
def model() -> Iterator[Live]:
    """A real model behind a server of its own."""
    example = local_model()
    # As many slots as choices, so that one request can bring them all.
    with example.running_server(example.get(), slots=N) as url:
        live = Live(url, example.MODEL_NAME)
        yield live
        live.close()


@pytest.mark.live
@pytest.mark.long
@pytest.mark.skipif(
    not installed(),
    reason="no local model: pip install xllamacpp && python examples/local_model/local_model.py get",
)
@pytest.mark.parametrize("sampling", ["requests", "single_request"])
class TestLive(Behaviours):
    """`ChatOpenAI` before a small real model."""

    @pytest.fixture
    def subject(self, model: Live, artifacts: Artifacts, sampling: SamplingName) -> Subject:
        model.reset()
        return Subject(model, sampling, artifacts)
