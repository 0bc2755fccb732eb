"""Record the prompts at which an agent answers, so that calibration uses the prompts of serving."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from langchain_cfc import CFCChatModel
from langchain_cfc.errors import CollectionError
from langchain_cfc.execution import describe_error
from langchain_cfc.records import Example
from langchain_cfc_agents.asking import FinalAnswerMiddleware
from langchain_cfc_agents.prompts import make_prompt_data

# Key under which the response metadata of a run's last message holds the prompt.
PROMPT_KEY = "prompt"


class RecordPrompt(FinalAnswerMiddleware):
    """Middleware that replaces `GuardedAnswer` while prompts are recorded.

    The agent runs as in serving until it wants to answer. The run then ends with an empty message, whose
    `response_metadata["prompt"]` is the prompt that the chain would get.
    """

    def __init__(self) -> None:
        super().__init__(CFCChatModel(chain=RunnableLambda(_return_prompt)))


def _return_prompt(messages: Sequence[BaseMessage]) -> AIMessage:
    return AIMessage("", response_metadata={PROMPT_KEY: make_prompt_data(messages)})


def answer_prompts(
    agent: Runnable[Any, Any], questions: Iterable[Example], *, max_concurrency: int = 8
) -> Iterator[Example]:
    """Run an agent on each question, up to the prompt at which it answers.

    Store every result, because runs cost money: `model_dump_json()` of each result makes a line of a file,
    and `langchain_cfc_collect` takes the examples read back from it.

    Args:
        agent: The agent that will serve, with `RecordPrompt` in place of `GuardedAnswer` and without a
            checkpointer, because each question is a conversation of its own.
        questions: Examples whose `input` is a question, a conversation so far as a list of messages, or the
            state that the agent is invoked with.
        max_concurrency: Maximum number of concurrent runs, at least 1.

    Yields:
        The questions, in the order in which their runs end, with the prompt as `input`. Id, reference,
        metadata and cluster are unchanged.

    Raises:
        CollectionError: After all results, if runs failed or ended without a prompt. A calibration without
            these questions covers only questions on which the agent comes to an answer.
    """
    asked = list(questions)
    failed: list[tuple[str, str]] = []
    limited: RunnableConfig = {"max_concurrency": max_concurrency}
    for place, ended in agent.batch_as_completed(_make_states(asked), limited, return_exceptions=True):
        yield from _read_prompt(asked[place], ended, failed)
    _raise_failures(asked, failed)


async def aanswer_prompts(
    agent: Runnable[Any, Any], questions: Iterable[Example], *, max_concurrency: int = 8
) -> AsyncIterator[Example]:
    """Do the same as `answer_prompts`, asynchronously, for agents with async tools."""
    asked = list(questions)
    failed: list[tuple[str, str]] = []
    limited: RunnableConfig = {"max_concurrency": max_concurrency}
    async for place, ended in agent.abatch_as_completed(_make_states(asked), limited, return_exceptions=True):
        for prompt in _read_prompt(asked[place], ended, failed):
            yield prompt
    _raise_failures(asked, failed)


def _make_states(questions: Sequence[Example]) -> list[Any]:
    return [make_state(question.input) for question in questions]


def make_state(given: str | list[Any] | dict[str, Any]) -> dict[str, Any]:
    """Return the state that an agent is invoked with for the input of an example."""
    if isinstance(given, dict):
        return given
    return {"messages": given if isinstance(given, list) else [{"role": "user", "content": given}]}


def _read_prompt(question: Example, ended: Any, failed: list[tuple[str, str]]) -> Iterator[Example]:
    """Yield the question with the recorded prompt as its input; if there is none, add it to `failed`."""
    if isinstance(ended, Exception):
        failed.append((question.id, describe_error(ended)))
        return
    prompt = ended["messages"][-1].response_metadata.get(PROMPT_KEY)
    if prompt is None:
        failed.append((question.id, "it ended before the model gave a final answer"))
        return
    fields = {name: value for name, value in question if name != "input"}
    yield Example(input=prompt, **fields)


def _raise_failures(asked: Sequence[Example], failed: Sequence[tuple[str, str]]) -> None:
    if failed:
        name, why = failed[0]
        msg = f"{len(failed)} of {len(asked)} runs recorded no prompt, {name!r} first: {why}"
        raise CollectionError(msg)
