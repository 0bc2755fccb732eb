"""Replay a recorded run in place of the model: no key, no network, the guard decides as it would then."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from langchain_cfc_agents import RecordedRun, make_run_records
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from office_figures import DELTA, read_recording
from pydantic import PrivateAttr

from langchain_cfc import CalibrationArtifact, calibrate

TEST_FRACTION = 0.2
PAGE_RATES = ("0.1", "0.2")
END = "The recording ends here, since the run went on in another way."


def load_bot() -> tuple[CalibrationArtifact, dict[str, RecordedRun]]:
    """Calibrate on four in five recorded runs; return the artifact, and the other runs to replay."""
    runs = read_recording()
    records, provenance, _ = make_run_records(runs)
    bot = calibrate(
        records, provenance=provenance, max_wrong_rate=PAGE_RATES, delta=DELTA, test_fraction=TEST_FRACTION
    )
    find = bot.calibration.split.find_part
    new = [run for run in runs if run.error is None and find(run.id, run.cluster) == "test"]
    return bot, {run.id: run for run in new}


class ReplayModel(BaseChatModel):
    """A chat model that says what the recorded model said, as long as the run goes on as recorded.

    Args:
        run: The recorded run. A turn that was drawn n times gives its n messages in turn.
    """

    run: RecordedRun
    disable_streaming: bool = True
    _left: dict[int, Iterator[AIMessage]] = PrivateAttr(default_factory=dict)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the recording states about its model, which the guard compares."""
        stated = (self.run.setup or {"generator": {}})["generator"]
        return {
            name.removeprefix("agent."): value for name, value in stated.items() if name.startswith("agent.")
        }

    @property
    def _llm_type(self) -> str:
        return "office-replay"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """Return the model itself: what it calls is recorded."""
        del tools, kwargs
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        del stop, run_manager, kwargs
        shown = messages[1:]  # without the system prompt
        recorded = convert_to_messages(self.run.messages)[: len(shown) + 1]
        place = sum(isinstance(one, AIMessage) for one in shown)
        if list(map(_strip, shown)) != list(map(_strip, recorded[:-1])):
            message = AIMessage(END)
        else:
            drawn = [_make_messages(turn.candidates) for turn in self.run.turns if turn.place == place]
            message = next(self._left.setdefault(place, iter(drawn[0] if drawn else [_copy(recorded[-1])])))
        return ChatResult(generations=[ChatGeneration(message=message)])


def _strip(message: BaseMessage) -> tuple[Any, ...]:
    """What decides whether a run goes on as recorded: texts, and calls without ids in any order."""
    calls = [(call["name"], call["args"]) for call in getattr(message, "tool_calls", [])]
    return message.type, message.text, sorted(json.dumps(one, sort_keys=True) for one in calls)


def _copy(message: BaseMessage) -> AIMessage:
    calls = getattr(message, "tool_calls", [])
    return AIMessage(message.text, tool_calls=[{**one, "id": str(uuid4())} for one in calls])


def _make_messages(candidates: Sequence[Any]) -> list[AIMessage]:
    """Return messages with the recorded calls; one token stands for all, with their probability."""
    made = []
    for one in candidates:
        calls = [{"name": call["name"], "args": call["args"], "id": str(uuid4())} for call in one.calls]
        probability = max(1 - (one.scores or {"probability": 1.0})["probability"], 1e-300)
        metadata: dict[str, Any] = {
            "logprobs": {"content": [{"token": "", "logprob": math.log(probability)}]}
        }
        if one.no_answer is not None:
            metadata = {"finish_reason": "length"}
        made.append(AIMessage("" if calls else "Done", tool_calls=calls, response_metadata=metadata))
    return made
