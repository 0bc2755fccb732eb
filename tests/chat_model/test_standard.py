"""LangChain's own tests of chat models, over HTTP to a server on this machine.

What is skipped, and why: `init_from_env_params` (there is no environment variable to read), serialization (a
chain holds functions and models, and is no plain data), JSON mode (structured output is by tool calls), tool
messages with images and PDF (the generator's provider takes none), cassettes (the server is real), and what
the properties below say.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCRunnable
from tests.chat_model.facades import accept_all, make_client

from .responder import Responder

every_schema = pytest.mark.parametrize("schema_type", ["pydantic", "typeddict", "json_schema"])
# `test_arguments.py` shows what these tests show beside the count.
counts_runs = pytest.mark.xfail(
    raises=AssertionError,
    reason="expects one run of a chat model, but each draw is one of its own below the facade's",
)


class Served:
    """What both classes of tests need: a facade over a model that a local server plays."""

    chain: CFCRunnable

    @pytest.fixture(autouse=True)
    def _served(self, url: str, artifact: CalibrationArtifact) -> None:
        self.chain = CFCRunnable(generator=make_client(url), verifier=accept_all, artifact=artifact)

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return CFCChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"chain": self.chain}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        # Temperature, key and the like are the generator's, and refused here.
        return {}

    @property
    def supports_model_override(self) -> bool:
        # Another model is not the one calibrated.
        return False

    @property
    def supports_image_inputs(self) -> bool:
        return True

    @property
    def supports_image_urls(self) -> bool:
        return True

    @property
    def supports_pdf_inputs(self) -> bool:
        return True

    @property
    def supports_audio_inputs(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True


class TestUnit(Served, ChatModelUnitTests):
    pass


# The client speaks of a PDF that the tests give no name.
@pytest.mark.filterwarnings("ignore:OpenAI may require a filename")
class TestIntegration(Served, ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def _offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The pictures and sounds that the tests would fetch are of no account; that they arrive is."""
        monkeypatch.setattr(httpx, "get", lambda *_, **__: SimpleNamespace(content=b"some bytes"))
        monkeypatch.setenv("LANGCHAIN_TESTS_USER_AGENT", "none")

    @pytest.fixture(autouse=True)
    def _asks_for_n_candidates_at_a_time(
        self, responder: Responder, artifact: CalibrationArtifact
    ) -> Iterator[None]:
        yield
        assert len(responder.requests) % artifact.n == 0
        assert len(responder.requests) % artifact.n == 0

    @counts_runs
    @every_schema
    def test_structured_output(self, model: BaseChatModel, schema_type: Any) -> None:
        super().test_structured_output(model, schema_type)

    @counts_runs
    @every_schema
    async def test_structured_output_async(self, model: BaseChatModel, schema_type: Any) -> None:
        await super().test_structured_output_async(model, schema_type)
