"""Verifiers that ask a model about each distinct candidate, and read its reply or its log-probabilities.

A text prompt is quoted in the request. Messages are passed on unchanged, images included, and the request
follows as one further message. Tags around a quoted text show the model where it begins and ends; a text
cannot open or close them, because the first character of such tags in it is escaped.

A model that is asked to reply with one of two words gives each of them, in several spellings, a probability.
Their ratio is a finer judgement than the word that was sampled, and is available after one token.
"""

from __future__ import annotations

import json
import math
import string
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import Call, Steps, Target, describe_error
from langchain_cfc.no_answers import strip_reasoning
from langchain_cfc.sampling.classification import classify_ending
from langchain_cfc.sampling.models import make_optional_call, without_streaming_and_cache
from langchain_cfc.support.normalisation import LATIN_SHAPES, unify_characters
from langchain_cfc.support.serialization import compute_sha256
from langchain_cfc.support.text import quote
from langchain_cfc.verifiers.base import TextVerifier, combine_fingerprints, read_token_logprobs
from langchain_cfc.verifiers.prompts import read_prompt

Question: TypeAlias = Target

# The names of the tags that requests put around texts, and the characters that open a tag.
_TAGS = ("question", "answer", "premise", "hypothesis")
_OPENING = "<\uff1c\ufe64"
# Stated in fingerprints: change it when `escape_tags` changes.
_ESCAPES = "tags-2"
QUESTION_TEMPLATE = """\
<question>
{question}
</question>"""
# Added when a reply cannot be read, so that a cache does not give the same one again.
READABLE_REPLY_REQUEST = """

Your last reply could not be read. Reply in exactly the form that is asked for."""
QUESTION_IS_ABOVE = "The question is asked by the conversation above this message."
_HINT = "pass question=, a function from a prompt to text or messages"


class PromptedModel:
    """Base of classes that ask a model about a prompt and answers to it.

    `model` is the judging model as the user passed it, `called` the same model as it is prepared for calls;
    for `question` see `ModelJudge`.
    """

    name: str | None
    fingerprint: Mapping[str, Any]

    def __init__(
        self, name: str, model: Runnable[Any, Any], called: Runnable[Any, Any], question: Question | None
    ) -> None:
        self.name = name
        self.model = model
        self.question = question
        self._ask = Call("judging model", called, VerifierError)
        self._make_question = make_optional_call("question function", question, VerifierError)

    @abstractmethod
    def _write_sample(self, question: str) -> str:
        """Return the text that all requests share, with names in braces for the parts that differ."""

    def _ask_each(
        self, prompt: Any, config: RunnableConfig, write_requests: Callable[[str], list[str]]
    ) -> Steps[list[Any]]:
        """Send requests about one prompt concurrently; `write_requests` gets the question's text."""
        if self._make_question is not None:
            [prompt] = yield from self._make_question.invoke_in_turn([prompt], config)
        # Many chat templates refuse two messages of one role in a row, so a single human message with text
        # only is quoted like a text.
        content = read_prompt(prompt, _HINT, VerifierError)
        quoted = QUESTION_TEMPLATE.format(question=escape_tags(content.text))
        question = QUESTION_IS_ABOVE if content.messages else quoted
        requests = [[*content.messages, HumanMessage(words)] for words in write_requests(question)]
        return (yield from self._ask.invoke_each(requests, config))

    def _make_fingerprint(self, **settings: Any) -> dict[str, Any]:
        """Return the settings, the model's fingerprint, and a digest of the text that all requests share."""
        words = [self._write_sample(place) for place in (QUESTION_TEMPLATE, QUESTION_IS_ABOVE)]
        words += [READABLE_REPLY_REQUEST, _ESCAPES]
        source = "prompt" if self.question is None else "own"
        return combine_fingerprints(
            str(self.name),
            {**settings, "instructions": compute_sha256(json.dumps(words)), "question": source},
            {"model": self.model, "question": self.question},
        )

    def _model_name(self) -> str:
        return str(self.fingerprint.get("model.model", type(self.model).__name__))


class PromptedVerifier(PromptedModel, TextVerifier):
    """Asks a model about each distinct text of a prompt's candidates, concurrently.

    A reply that cannot be read is asked for once more. If that one cannot be read either, there is no verdict
    about the text; if this is so for every one of several texts, a `VerifierError` is raised.
    """

    @abstractmethod
    def _write_request(self, question: str, text: str) -> str:
        """Return the request about a candidate's text."""

    @abstractmethod
    def _read_score(self, reply: Any) -> float | None:
        """Return the score in [0, 1] that a reply states; None if it states none.

        Raises a `VerifierError` if the model or its server does not do what this verifier needs.
        """

    def score_texts(self, prompt: Any, config: RunnableConfig, texts: list[str]) -> Steps[list[float | None]]:
        """Ask the model about each text, and twice if its reply cannot be read."""

        def ask(shown: list[str], note: str) -> Steps[list[Any]]:
            return (
                yield from self._ask_each(
                    prompt,
                    config,
                    lambda question: [self._write_request(question, text) + note for text in shown],
                )
            )

        replies = yield from ask(texts, "")
        scores = dict(zip(texts, map(self._read_or_explain, replies), strict=True))
        faults = [one for one in scores.values() if isinstance(one, VerifierError)]
        if faults and len(faults) == len(scores):
            raise faults[0]  # no odd reply, but how the model or its server works
        unread = [text for text, one in scores.items() if one is None or isinstance(one, VerifierError)]
        if unread:
            again = yield from ask(unread, READABLE_REPLY_REQUEST)
            scores.update(zip(unread, map(self._read_or_explain, again), strict=True))
        read = [None if isinstance(one, VerifierError) else one for one in scores.values()]
        if len(unread) == len(read) > 1 and set(read) == {None}:
            msg = (
                f"none of the replies of {self.name} can be read, asked again either; the first is "
                f"{shorten_reply(replies[0])}. Use a model that keeps to the reply format without "
                "reasoning first, or another mode of ModelJudge"
            )
            raise VerifierError(msg)
        return read

    def _read_or_explain(self, reply: Any) -> float | VerifierError | None:
        try:
            return self._read_score(reply)
        except VerifierError as fault:
            return fault

    def _write_sample(self, question: str) -> str:
        return self._write_request(question, "{text}")


def escape_tags(text: str) -> str:
    """Return a text in which no tag can be read as one of those that requests put around texts.

    Examples:
        >>> escape_tags("Lima</answer><b>!</b>")
        'Lima&lt;/answer><b>!</b>'
    """
    letters, opened = "", {}
    for place, character in enumerate(text if not set(_OPENING).isdisjoint(text) else ""):
        if character in _OPENING:
            opened[place] = len(letters)
        else:
            plain = unify_characters(character).translate(LATIN_SHAPES).casefold()
            letters += "".join(filter(str.isalnum, plain))
    # Models also read tags with blanks, invisible characters or letters of other scripts in them.
    escaped = {place for place, start in opened.items() if letters.startswith(_TAGS, start)}
    return "".join("&lt;" if place in escaped else one for place, one in enumerate(text)) if escaped else text


def silence_model(model: Any) -> Runnable[Any, Any]:
    """Return a judging model without streaming; raise an `InputError` if it is not a Runnable."""
    if isinstance(model, Runnable):
        return without_streaming_and_cache(model, fresh=False)
    msg = f"got a {type(model).__name__} as judging model; expected a chat model, such as ChatOpenAI(...)"
    raise InputError(msg)


# Number of characters of a reply in a message.
_MAX_LENGTH = 120
# The most that hosted models return.
TOP_LOGPROBS = 20
# The most by which a server's rounding can lift a log-probability above 0.
_ROUND_OFF = 1e-3
# Characters that may surround a word in one token: blanks, also as some servers spell them, and punctuation.
_PUNCTUATION = string.whitespace + string.punctuation + "\u0120\u010a\u2581"
# The word may follow a bracket or a line break, each of which may be a token.
_MAX_TOKENS = 4


def request_logprobs(model: Runnable[Any, Any], top: int) -> Runnable[Any, Any]:
    """Bind a model to return few tokens, with the `top` likeliest ones at each place.

    The model is a chat model that accepts `logprobs` and `top_logprobs`, or a binding or retry around one; if
    it has `max_tokens`, these are limited. A `top` below 2 raises an `InputError`.
    """
    if top < 2:  # noqa: PLR2004 - a choice is between two
        msg = f"top_logprobs must be at least 2, for a choice between two words; got {top}"
        raise InputError(msg)
    inner = find_chat_model(model)
    limited = inner is not None and "max_tokens" in type(inner).model_fields
    return model.bind(logprobs=True, top_logprobs=top, **({"max_tokens": _MAX_TOKENS} if limited else {}))


def find_chat_model(part: Runnable[Any, Any]) -> BaseChatModel | None:
    """Return the chat model, also from inside bindings and retries; None if there is none."""
    while isinstance(part, RunnableBindingBase):
        part = part.bound
    return part if isinstance(part, BaseChatModel) else None


@dataclass(frozen=True)
class Choice:
    """Two answers that a model is asked to choose between, each as words in lower case."""

    yes: frozenset[str]
    no: frozenset[str]


def read_choice(reply: Any, choice: Choice) -> float | None:
    """Return the probability of `no` against `yes`, from the alternatives of the first word of a reply.

    None if there is no word, or if neither answer is among its alternatives.

    Raises:
        VerifierError: If the reply has no readable log-probabilities.
    """
    entries = read_token_logprobs(reply)
    if not entries:
        msg = (
            "the judging model returned no token log-probabilities with "
            f"{shorten_reply(reply)}; expected them for each token. Use a model and server that return them "
            "(reasoning models often do not), or ModelJudge with mode='structured' or mode='line'"
        )
        raise VerifierError(msg)
    first = next((one for one in entries if _normalise_word(str(one.get("token", "")))), None)
    return None if first is None else _compute_no_probability(first, choice)


def _compute_no_probability(entry: Mapping[str, Any], choice: Choice) -> float | None:
    """Return p(no) / (p(yes) + p(no)), summed over spellings; None if neither is among the alternatives.

    A word that is not among the alternatives is less likely than each of them, and counts as 0.
    """
    try:
        logprobs = _read_logprobs(entry)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = (
            "the log-probabilities of the judging model's token "
            f"{shorten_reply(entry.get('token'))} cannot be read ({describe_error(error)}); expected its own "
            "and at least two top_logprobs. Use a server that returns them as OpenAI's does"
        )
        raise VerifierError(msg) from error
    yes = _log_sum(logprob for text, logprob in logprobs.items() if _normalise_word(text) in choice.yes)
    no = _log_sum(logprob for text, logprob in logprobs.items() if _normalise_word(text) in choice.no)
    if yes == no == -math.inf:
        return None
    # Not 1 - p(yes), which near certainty would round different probabilities to ties.
    if yes >= no:
        odds = math.exp(no - yes)
        return odds / (1.0 + odds)
    return 1.0 / (1.0 + math.exp(yes - no))


def _read_logprobs(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the log-probabilities of a token and its alternatives, by their texts."""
    listed = entry.get("top_logprobs") or []
    # One alternative says nothing about the other word, which may be nearly as likely.
    if len(listed) < 2:  # noqa: PLR2004 - a choice is between two
        msg = f"it has {len(listed)} top_logprobs"
        raise ValueError(msg)
    logprobs = {}
    # The sampled token need not be among the most likely ones.
    for one in [entry, *listed]:
        logprob = float(one["logprob"])
        if not logprob <= _ROUND_OFF:  # NaN fails this as well
            msg = f"the log-probability of {one['token']!r} is {logprob}"
            raise ValueError(msg)
        logprobs[str(one["token"])] = logprob
    return logprobs


def _normalise_word(text: str) -> str:
    """Return a text in lower case, without blanks and punctuation at both ends."""
    return text.strip(_PUNCTUATION).casefold()


def _log_sum(logprobs: Iterable[float]) -> float:
    """Return the logarithm of the sum of probabilities that are given as logarithms."""
    given = list(logprobs)
    most = max(given, default=-math.inf)
    return most if math.isinf(most) else most + math.log(math.fsum(math.exp(one - most) for one in given))


def get_reply_text(reply: Any) -> str:
    """Return the text of a judge's reply without its reasoning; empty if it was cut off or refused."""
    if isinstance(reply, BaseMessage) and classify_ending(reply) is not None:
        return ""
    return strip_reasoning(str(getattr(reply, "text", reply))) or ""


def shorten_reply(reply: Any) -> str:
    """Return the text of a reply, shortened for messages."""
    text = quote(str(getattr(reply, "text", reply)))
    return repr(text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}...")
