"""`ChatCompletions`: a `ChatOpenAI` with a complete fingerprint, and errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI

from langchain_cfc.errors import InputError
from langchain_cfc.extend import state_settings
from langchain_cfc_openai.failures import EndpointError, explain_failures, make_unreadable_error

# Request parameters that change what is drawn; the others concern delivery and accounting. Tools and response
# formats change it as well, but fingerprints state them as a digest.
DRAWING_PARAMETERS = (
    "model",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "reasoning_effort",
    "verbosity",
    "parallel_tool_calls",
    "function_call",
    "modalities",
    "audio",
    "prediction",
    "moderation",
    "web_search_options",
    "extra_body",
)


_PARSING_REFUSED = (
    "parsing during the draw fails for truncated candidates, which are then drawn again until none is "
    "truncated: give the format to make_generator(response_format=...), as JSON"
)


class ChatCompletions(ChatOpenAI):
    """A chat model that uses `/v1/chat/completions`, never the Responses API."""

    # Only chat completions offer several choices per request, with log-probabilities for each.
    use_responses_api: bool | None = False

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The model and every parameter that changes what it draws; None if the endpoint chooses its value.

        Unset parameters are stated as well, so that serving notices when one is bound to a call: it compares
        only keys that both sides state. Key, timeouts and retries are left out, and the address is added.
        """
        sent = self._default_params
        # Renamed to the common name in fingerprints of chat models.
        sent["max_tokens"] = sent.pop("max_completion_tokens", None)
        stop = sent.get("stop")
        sent["stop"] = [stop] if isinstance(stop, str) else stop
        stated = {name: sent.pop(name, None) for name in DRAWING_PARAMETERS}
        # Adds the other settings, including `model_kwargs`, and null digests of tools, prompts and steps.
        beside = {"default_headers": self.default_headers, "default_query": self.default_query}
        stated |= state_settings({**sent, **beside})
        # Converted to JSON and back, so that tuples and numeric keys equal those read from a file.
        written: dict[str, Any] = json.loads(json.dumps(stated))
        return written

    def with_structured_output(self, schema: Any = None, **kwargs: Any) -> Runnable[LanguageModelInput, Any]:
        """Raise an `InputError`; see `bind`."""
        del schema, kwargs
        raise InputError(_PARSING_REFUSED)

    def bind(self, **kwargs: Any) -> Any:
        """Return the model with bound arguments, of which none is a `response_format`.

        Raises:
            InputError: If there is a `response_format`. Candidates that are cut off would fail to parse and
                be drawn again, so the rest is no sample of the model's output.
        """
        if kwargs.get("response_format") is not None:
            raise InputError(_PARSING_REFUSED)
        return super().bind(**kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with explain_failures():
            result = super()._generate(messages, stop=stop, run_manager=run_manager, **kwargs)
        return _require_choice(result, kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with explain_failures():
            result = await super()._agenerate(messages, stop=stop, run_manager=run_manager, **kwargs)
        return _require_choice(result, kwargs)

    def _create_chat_result(
        self, response: dict[str, Any] | openai.BaseModel, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        try:
            return super()._create_chat_result(response, generation_info)
        except Exception as error:
            raise make_unreadable_error(error) from error


def _require_choice(result: ChatResult, asked: Mapping[str, Any]) -> ChatResult:
    """Return the result; raise an `EndpointError` if a single choice was requested and none came.

    If several choices were requested, the missing ones are drawn by separate requests.
    """
    if not result.generations and (asked.get("n") or 1) == 1:
        msg = (
            "the endpoint's response holds no choices: check that it serves this model for chat "
            "completions, and look at its log"
        )
        raise EndpointError(msg)
    return result
