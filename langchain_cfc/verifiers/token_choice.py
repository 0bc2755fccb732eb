"""How a model weighs two answers, read from the alternatives to a token that it replied with.

A model that is asked to reply with one of two words gives each of them, in several spellings, a probability.
Their ratio is a finer judgement than the word that was drawn, and it is there after one token.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableBindingBase

from langchain_cfc.calls import described
from langchain_cfc.errors import InputError, VerifierError

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


def with_logprobs(model: Runnable[Any, Any], top: int, *, short: bool) -> Runnable[Any, Any]:
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
    inner = chat_model_in(model)
    limited = short and inner is not None and "max_tokens" in type(inner).model_fields
    return model.bind(logprobs=True, top_logprobs=top, **({"max_tokens": _FEW_TOKENS} if limited else {}))


def chat_model_in(part: Runnable[Any, Any]) -> BaseChatModel | None:
    """The chat model itself, or inside bindings and retries; None where there is none to be seen."""
    while isinstance(part, RunnableBindingBase):
        part = part.bound
    return part if isinstance(part, BaseChatModel) else None


def tokens_of(reply: Any, slot: int) -> list[Token]:
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
            f"candidate {slot}: the judging model returned no token log-probabilities with {shown(reply)}; "
            "expected them for each token. Use a model and server that return them (reasoning models "
            "often do not), or ModelJudge with mode='structured' or mode='line'"
        )
        raise VerifierError(msg)
    return [Token(str(entry.get("token", "")), entry) for entry in entries]


def first_word(tokens: Sequence[Token]) -> Token | None:
    """The first token that is more than blanks and brackets; None if there is none."""
    return next((token for token in tokens if _word(token.text)), None)


def last_word(tokens: Sequence[Token], choice: Choice, label: str) -> Token | None:
    """The token of the choice in a last line `label: word`; None if the reply does not end so."""
    for position in range(len(tokens) - 1, -1, -1):
        word = _word(tokens[position].text)
        if word:
            before = "".join(token.text for token in tokens[:position])
            line = before.rpartition("\n")[2].strip(_AROUND).casefold()
            fits = word in choice.yes | choice.no and line == label.casefold()
            return tokens[position] if fits else None
    return None


def against(token: Token, choice: Choice, slot: int) -> float | None:
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
            f"candidate {slot}: the log-probabilities of the judging model's token {shown(token.text)} "
            f"cannot be read ({described(error)}); expected its own and at least two "
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


def shown(reply: Any) -> str:
    """What came, shortened, for messages."""
    text = str(getattr(reply, "text", reply))
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
