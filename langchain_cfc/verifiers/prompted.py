"""Asking a model about candidates: one request per distinct text, about whatever the prompt is.

A prompt of text is quoted in the request. Messages are handed on as they are, images included, and the
request follows as one further message.

How a model weighs two answers, read from the alternatives to a token that it replied with.

A model that is asked to reply with one of two words gives each of them, in several spellings, a probability.
Their ratio is a finer judgement than the word that was drawn, and it is there after one token.
"""

from __future__ import annotations

import hashlib
import json
import math
import string
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import Call, Steps, describe_error
from langchain_cfc.sampling import without_streaming_and_cache
from langchain_cfc.verifiers._prompts import read_prompt
from langchain_cfc.verifiers.base import BaseVerifier, VerifierInput, combined_fingerprint, distinct_texts

Messages: TypeAlias = list[BaseMessage]
Question: TypeAlias = Runnable[Any, Any] | Callable[[Any], Any] | Callable[[Any], Awaitable[Any]]

QUESTION = """\
<question>
{question}
</question>"""
ABOVE = "The question is asked by the conversation above this message."
_HINT = "pass question=, a function that makes text or messages of a prompt"


class PromptedVerifier(BaseVerifier):
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
        making = (
            without_streaming_and_cache(question, fresh=False) if isinstance(question, Runnable) else question
        )
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
        return combined_fingerprint(self.get_name(), {**settings, **source}, {"model": self.model, **own})

    def _who(self) -> str:
        """The judging model, for `repr`."""
        return str(self.fingerprint.get("model.model", type(self.model).__name__))


def check_model(model: Any) -> Runnable[Any, Any]:
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


# The most that hosted models return.
TOP_LOGPROBS = 20
# The most by which a server's rounding can lift a log-probability above 0.
_ROUNDING = 1e-3
# What stands around a word in one token: blanks, as some servers spell them too, brackets, emphasis.
_AROUND = string.whitespace + string.punctuation + "\u0120\u010a\u2581"
# A word may come in brackets or after a line break, each a token of its own.
_FEW_TOKENS = 4
_SHOWN = 120


@dataclass(frozen=True)
class Choice:
    """Two answers between which a model is asked to choose.

    Attributes:
        yes: Words of the one, in lower case.
        no: Words of the other.
    """

    yes: frozenset[str]
    no: frozenset[str]

    def expected(self) -> str:
        """The words, for messages."""
        return " or ".join(sorted(self.yes | self.no))


@dataclass(frozen=True)
class Token:
    """A token of a reply.

    Attributes:
        text: The token itself.
        entry: What the server says of it.
    """

    text: str
    entry: Mapping[str, Any]

    def likeliest(self) -> str:
        """What could have stood there, likeliest first, for messages."""
        return ", ".join(repr(str(one.get("token"))) for one in self.entry.get("top_logprobs") or [])


def request_logprobs(model: Runnable[Any, Any], top: int, *, short: bool) -> Runnable[Any, Any]:
    """A model that returns the alternatives to its tokens.

    Args:
        model: A chat model that accepts `logprobs` and `top_logprobs`, or a binding or retry around one.
        top: Number of alternatives, at least 2.
        short: Whether the first few tokens of a reply are all that is wanted.

    Raises:
        InputError: If fewer alternatives are asked for.
    """
    if top < 2:  # noqa: PLR2004 - a choice is between two
        msg = f"top_logprobs must be at least 2, for a choice between two words; got {top}"
        raise InputError(msg)
    inner = find_chat_model(model)
    limited = short and inner is not None and "max_tokens" in type(inner).model_fields
    return model.bind(logprobs=True, top_logprobs=top, **({"max_tokens": _FEW_TOKENS} if limited else {}))


def find_chat_model(part: Runnable[Any, Any]) -> BaseChatModel | None:
    """The chat model itself, or inside bindings and retries; None where there is none to be seen."""
    while isinstance(part, RunnableBindingBase):
        part = part.bound
    return part if isinstance(part, BaseChatModel) else None


def read_tokens(reply: Any, slot: int) -> list[Token]:
    """The tokens of a reply.

    Args:
        reply: The message.
        slot: The candidate that was asked about, for messages.

    Raises:
        VerifierError: If it carries no log-probabilities.
    """
    found = (getattr(reply, "response_metadata", None) or {}).get("logprobs")
    # OpenAI's servers and those like them wrap the list, Ollama's do not.
    entries = found.get("content") if isinstance(found, Mapping) else found
    if not isinstance(entries, list) or not all(isinstance(one, Mapping) for one in entries) or not entries:
        msg = (
            f"candidate {slot}: the judging model returned no token log-probabilities with {shorten_reply(reply)}; "
            "expected them for each token. Use a model and server that return them (reasoning models "
            "often do not), or ModelJudge with mode='structured' or mode='line'"
        )
        raise VerifierError(msg)
    return [Token(str(entry.get("token", "")), entry) for entry in entries]


def find_first_word(tokens: Sequence[Token]) -> Token | None:
    """The first token that is more than blanks and brackets; None if there is none."""
    return next((token for token in tokens if _word(token.text)), None)


def find_last_word(tokens: Sequence[Token], choice: Choice, label: str) -> Token | None:
    """The token of the choice in a last line `label: word`; None if the reply does not end so."""
    for position in range(len(tokens) - 1, -1, -1):
        word = _word(tokens[position].text)
        if word:
            before = "".join(token.text for token in tokens[:position])
            line = before.rpartition("\n")[2].strip(_AROUND).casefold()
            fits = word in choice.yes | choice.no and line == label.casefold()
            return tokens[position] if fits else None
    return None


def compute_no_probability(token: Token, choice: Choice, slot: int) -> float | None:
    """The probability of `no` between the two, summed over spellings: p(no) / (p(yes) + p(no)).

    A word that is not among the alternatives is less likely than each of them, and counts as 0.

    Args:
        token: Where one of the two was expected.
        choice: The two.
        slot: The candidate that was asked about, for messages.

    Returns:
        A number in [0, 1]; None if neither word is among the alternatives.

    Raises:
        VerifierError: If there are no alternatives, or one has no log-probability.
    """
    try:
        weighed = _weighed(token.entry)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = (
            f"candidate {slot}: the log-probabilities of the judging model's token {shorten_reply(token.text)} "
            f"cannot be read ({describe_error(error)}); expected its own and at least two "
            "top_logprobs. Use a server that returns them as OpenAI's does"
        )
        raise VerifierError(msg) from error
    yes = _log_total(logprob for text, logprob in weighed.items() if _word(text) in choice.yes)
    no = _log_total(logprob for text, logprob in weighed.items() if _word(text) in choice.no)
    if yes == no == -math.inf:
        return None
    # Not 1 - p(yes): near certainty that would make ties of what differs.
    if yes >= no:
        odds = math.exp(no - yes)
        return odds / (1.0 + odds)
    return 1.0 / (1.0 + math.exp(yes - no))


def _weighed(entry: Mapping[str, Any]) -> dict[str, float]:
    """What could have stood in a token's place, itself included, with log-probabilities."""
    listed = entry.get("top_logprobs") or []
    # Of one alternative nothing can be said about the other word, which may be nearly as likely.
    if len(listed) < 2:  # noqa: PLR2004 - a choice is between two
        msg = f"it has {len(listed)} top_logprobs"
        raise ValueError(msg)
    # The token that was drawn need not be among the likeliest.
    return {str(one["token"]): _logprob(one) for one in [entry, *listed]}


def _logprob(entry: Mapping[str, Any]) -> float:
    logprob = float(entry["logprob"])
    if not logprob <= _ROUNDING:  # NaN fails this as well
        msg = f"that of {entry['token']!r} is {logprob}"
        raise ValueError(msg)
    return logprob


def _word(text: str) -> str:
    """A token without what stands around a word, in lower case."""
    return text.strip(_AROUND).casefold()


def _log_total(logprobs: Iterable[float]) -> float:
    """The logarithm of the sum of some probabilities."""
    given = list(logprobs)
    most = max(given, default=-math.inf)
    return most if math.isinf(most) else most + math.log(math.fsum(math.exp(one - most) for one in given))


def shorten_reply(reply: Any) -> str:
    """What came, shortened, for messages."""
    text = str(getattr(reply, "text", reply))
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
