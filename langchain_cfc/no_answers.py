"""What is no answer: its kinds with their cures, invisible text, and reasoning that a model writes into text.

A candidate that is no answer has an empty text, the worst score and the label wrong, and no set rule admits
it. All of this is a function of the draw alone, the same in calibration and in serving. So prompts stay
exchangeable, and a promise about answer sets holds for generators that are sometimes cut off or refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Literal, TypeAlias

from langchain_cfc.support.normalisation import INVISIBLE, TERMINAL_ESCAPE

__all__ = ["NoAnswer", "Reasoning", "Unscored"]

NoAnswer: TypeAlias = Literal[
    "reasoning_only", "cut_off", "filtered", "refused", "tool_call_only", "unparsable", "blank", "not_located"
]
"""Why a draw is no answer. `unparsable`: what reads the model's message (a parser, a schema) failed.
`not_located`: it is a claim that was not found in the answer."""

Unscored: TypeAlias = NoAnswer | Literal["no_verdict"]
"""Why a candidate has the worst score: it is no answer, or the verifier has no verdict on it."""

Reasoning: TypeAlias = Literal["strip", "keep"]
"""Whether reasoning between tags such as <think> is removed from a candidate's text."""

# What is said about each kind, and what helps.
_KINDS: Mapping[str, tuple[str, str]] = {
    "cut_off": ("cut off", "raise max_tokens, and the context window of a local model"),
    "reasoning_only": ("reasoning without an answer", "raise max_tokens, or lower the reasoning effort"),
    "filtered": ("stopped by the provider's content filter", "change the prompt or the filter's settings"),
    "refused": ("refused by the model", "change the prompt, or leave such questions out"),
    "tool_call_only": ("tool calls without an answer", "bind the tools to the generator, or switch them off"),
    "unparsable": ("not readable by the generator's parser", "ask for its format in the prompt"),
    "blank": ("blank", "look at what the model returns"),
    "not_located": ("claims that were not found in the answer", "let the splitter quote the answer exactly"),
    "no_verdict": ("without a readable verdict of the verifier", "look at the verifier's replies"),
    "no_label": ("without a readable label and count as wrong", "look at the replies of the labels' judge"),
}


def describe_unscored(counts: Mapping[Any, int], total: int | None = None) -> list[str]:
    """Return a sentence for each kind of candidate that was not judged, with what helps.

    Args:
        counts: Number of candidates by kind: `Unscored`, or `no_label` without a readable label.
        total: Number of all candidates; None to leave it out.

    Returns:
        The sentences, most frequent kind first.

    Examples:
        >>> describe_unscored({"cut_off": 8}, 400)
        ['8 of 400 candidates were cut off: raise max_tokens, and the context window of a local model.']
    """
    among = "" if total is None else f" of {total:,}"
    ranked = sorted(counts.items(), key=lambda one: -one[1])
    return [f"{count:,}{among} candidates were {explain_unscored(kind)}." for kind, count in ranked if count]


def explain_unscored(kind: str) -> str:
    """Return what is said about a kind of candidate that was not judged, and what helps."""
    return ": ".join(_KINDS[kind])


# White space, what is drawn without ink, the blank in Braille, and what a terminal obeys.
_INVISIBLE = re.compile(rf"(?:{TERMINAL_ESCAPE}|[\s\u2800{INVISIBLE}])*")


def is_invisible(text: str) -> bool:
    r"""Return whether a text shows nothing: it is empty, or only white space and invisible characters.

    Examples:
        >>> is_invisible(" \u200b\n"), is_invisible("-")
        (True, False)
    """
    # Nearly every text begins with a visible sign of ASCII, which takes less time to see.
    return not "!" <= text[:1] <= "~" and _INVISIBLE.fullmatch(text) is not None


# Tags that models and their servers put around reasoning, as pairs: DeepSeek, Qwen, Seed and most others;
# Magistral; Kimi; OpenThinker and Cohere; Gemma; the channels of gpt-oss. A tag in quotes or code is one that
# the text is about.
_WORDS = (
    r"(?:seed:|ant)?(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad|(?:inner|internal)_monologue)"
)
_PAIRS = (
    (rf"<{_WORDS}(?:\s[^<>]*)?>", rf"</{_WORDS}\s*>"),
    (r"\[THINK\]", r"\[/THINK\]"),
    (r"◁think▷", r"◁/think▷"),
    (
        r"<\|(?:begin|start)_(?:of_)?(?:thought|think(?:ing)?)\|>",
        r"<\|end_(?:of_)?(?:thought|think(?:ing)?)\|>",
    ),
    (r"<unused94>", r"<unused95>"),
    (r"<\|channel>", r"<channel\|>"),
    (
        r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)[^<]*<\|message\|>",
        r"(?:<\|start\|>assistant)?<\|channel\|>final[^<]*<\|message\|>",
    ),
)
# Pairs whose second part may also stand alone in text that has nothing to do with reasoning: what gpt-oss
# leaves where a server removed its special tokens, Granite's sentences, and Open WebUI's element.
_AMBIGUOUS_PAIRS = (
    (r"\A\s*analysis(?=.*assistantfinal)", r"assistantfinal"),
    (r"Here(?:'s| is) my thought process:", r"Here(?:'s| is) my response:"),
    (r"<details\s[^<>]*type=\"reasoning\"[^<>]*>", r"</details>"),
)
_TAG = re.compile(
    "(?<![`\"'\u2018\u201c])(?:"
    + "|".join(
        f"(?P<open{number}>{opening})|(?P<close{number}>{closing})"
        for number, (opening, closing) in enumerate(_PAIRS + _AMBIGUOUS_PAIRS)
    )
    + ")",
    re.IGNORECASE | re.DOTALL,
)
# What each tag begins with, but for the ambiguous ones, whose opening parts need one of two phrases. Looking
# for these is a hundred times as fast, which counts in answers of pages.
_TAG_START = re.compile(r"<[|/a-z]|\[/?t|◁/?t", re.IGNORECASE)
# Special tokens around an answer that follows reasoning.
_ANSWER_TOKENS = re.compile(r"<\|(?:end|return|call|(?:begin|end)_of_solution)\|>", re.IGNORECASE)


def find_answer_spans(text: str) -> list[tuple[int, int]] | None:
    """Return the parts of a text, as (start, end), that are not reasoning between tags.

    A closing tag without an opening one ends reasoning that began in the prompt, as in some chat templates.

    Args:
        text: A model's whole text.

    Returns:
        The parts in order; None if reasoning is not closed, so that the text has no answer.
    """
    folded = text.casefold()
    tags: Iterator[re.Match[str] | None]
    if "assistantfinal" in folded or "my thought process:" in folded:
        tags = _TAG.finditer(text)
    else:
        tags = map(_TAG.match, repeat(text), map(re.Match.start, _TAG_START.finditer(text)))
    spans: list[tuple[int, int]] = []
    start, opened, end = 0, None, 0
    for tag in tags:
        if tag is None or tag.start() < end:
            continue
        end = tag.end()
        kind = str(tag.lastgroup)
        number = kind.removeprefix("open").removeprefix("close")
        if kind.startswith("open"):
            if opened is None:
                spans.append((start, tag.start()))
                opened = number
        elif opened == number:
            opened, start = None, tag.end()
        elif opened is None and int(number) < len(_PAIRS):
            spans, start = [], tag.end()
    return None if opened is not None else [*spans, (start, len(text))]


def strip_reasoning(text: str) -> str | None:
    """Remove reasoning between tags from a text; None if it is not closed, so that there is no answer.

    Args:
        text: A model's whole text.

    Returns:
        The rest, without white space around it; a text without such tags is returned unchanged.

    Examples:
        >>> strip_reasoning("<think>Cusco? No.</think> Lima"), strip_reasoning("<think>Cusco?")
        ('Lima', None)
    """
    spans = find_answer_spans(text)
    if spans is None or (len(spans) == 1 and spans[0] == (0, len(text))):
        return None if spans is None else text
    return _ANSWER_TOKENS.sub("", "".join(text[start:end] for start, end in spans)).strip()
