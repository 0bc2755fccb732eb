"""Asking a model about candidates: one request per distinct text, about whatever the prompt is.

A prompt of text is quoted in the request. Messages are handed on as they are, images included, and the
request follows as one further message.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.calls import Call, Steps
from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.sampling import quiet
from langchain_cfc.verifiers._prompts import read_prompt
from langchain_cfc.verifiers.base import BaseVerifier, VerifierInput, distinct_texts
from langchain_cfc.verifiers.parts import together

Messages: TypeAlias = list[BaseMessage]
Question: TypeAlias = Runnable[Any, Any] | Callable[[Any], Any] | Callable[[Any], Awaitable[Any]]

QUESTION = """\
<question>
{question}
</question>"""
ABOVE = "The question is asked by the conversation above this message."
_HINT = "pass question=, a function that makes text or messages of a prompt"


class Asking(BaseVerifier):
    """Asks a model about each distinct text of a prompt's candidates, concurrently.

    Args:
        name: What it is called in traces and in its fingerprint.
        model: The judging model as the user gave it.
        asked: The same, as it is called.
        question: See `ModelJudge`.
    """

    def __init__(
        self,
        name: str,
        model: Runnable[Any, Any],
        asked: Runnable[Any, Any],
        question: Question | None,
    ) -> None:
        self.name = name
        self.model = model
        self.question = question
        self._asked = Call("judging model", asked, VerifierError)
        # A question may be made by a model as well, whose tokens are nobody's business either.
        making = quiet(question, fresh=False) if isinstance(question, Runnable) else question
        self._making = None if making is None else Call("question function", making, VerifierError)

    @abstractmethod
    def _request(self, question: str, text: str, texts: Sequence[str]) -> str:
        """The words of a request.

        Args:
            question: What stands for the question in it.
            text: The candidate to judge.
            texts: All candidates of the prompt in draw order.
        """

    @abstractmethod
    def _score(self, reply: Any, slot: int) -> float:
        """What a reply says of a candidate.

        Args:
            reply: What the model returned.
            slot: The candidate, for messages.

        Returns:
            A score in [0, 1], smaller is better.

        Raises:
            VerifierError: If it says nothing.
        """

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """One judgement per distinct text."""
        prompt = given["prompt"]
        if self._making is not None:
            [prompt] = yield from self._making.all([prompt], config)
        question = _question(prompt)
        texts = [candidate.text for candidate in given["candidates"]]
        distinct = distinct_texts(given["candidates"])
        requests = [self._messages(question, text, texts) for text in distinct]
        replies = yield from self._asked.each(requests, config)
        scores = {
            text: self._score(reply, texts.index(text)) for text, reply in zip(distinct, replies, strict=True)
        }
        return [scores[text] for text in texts]

    def _messages(self, question: str | Messages, text: str, texts: Sequence[str]) -> Messages:
        if isinstance(question, str):
            return [HumanMessage(self._request(QUESTION.format(question=question), text, texts))]
        return [*question, HumanMessage(self._request(ABOVE, text, texts))]

    def _fingerprint_with(self, **settings: Any) -> dict[str, Any]:
        """The fingerprint: the settings, the model's, and a digest of the words that every request has."""
        words = [self._request(place, "{text}", ["{first}", "{second}"]) for place in (QUESTION, ABOVE)]
        digest = hashlib.sha256(json.dumps(words).encode()).hexdigest()
        own = {} if self.question is None else {"question": self.question}
        source = {"instructions": f"sha256:{digest}", "question": "own" if own else "prompt"}
        return together(self.get_name(), {**settings, **source}, {"model": self.model, **own})

    def _who(self) -> str:
        """The judging model, for `repr`."""
        return str(self.fingerprint.get("model.model", type(self.model).__name__))


def checked_model(model: Any) -> Runnable[Any, Any]:
    """A judging model.

    Raises:
        InputError: If it is no Runnable.
    """
    if isinstance(model, Runnable):
        return model
    msg = f"got a {type(model).__name__} as judging model; expected a chat model, such as ChatOpenAI(...)"
    raise InputError(msg)


def _question(prompt: Any) -> str | Messages:
    """Return what stands for the question: text to quote, or messages to pass on as they are.

    Many chat templates refuse two messages of one speaker in a row, so a single human message of text is
    quoted as text is.
    """
    content = read_prompt(prompt, _HINT, VerifierError)
    return list(content.messages) if content.kind == "messages" else content.text
