"""A chain whose answers are lines that state whether they are right, and that counts all requests."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langchain_cfc_collect import Components

from langchain_cfc.claims import Span
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate

IDS: dict[str, str] = {"generator_id": "claiming", "verifier_id": "hash", "splitter_id": "lines"}


def make_examples(size: int) -> list[Example]:
    """Prompts p0, p1, ..., every fifth of which is refused."""
    return [
        Example(id=f"p{number}", input=f"question {number}", reference="right", metadata={"kind": number % 2})
        for number in range(size)
    ]


def write_answer(prompt: str) -> str:
    """An answer of one to four lines, each of which says whether it is right; none to every fifth prompt."""
    number = int(prompt.split()[1])
    if number % 5 == 4:
        return "..."
    words = ["right" if zlib.crc32(f"{number} {slot}".encode()) % 3 else "wrong" for slot in range(4)]
    return "\n".join(f"line {slot} of {number} is {words[slot]}" for slot in range(1 + number % 4))


def count_lines(prompt: str) -> int:
    """How many claims the answer to a prompt makes."""
    answer = write_answer(prompt)
    return 0 if answer == "..." else len(answer.splitlines())


def find_lines(answer: str) -> list[Span]:
    """The lines of an answer with letters or digits."""
    spans, start = [], 0
    for line in answer.splitlines(keepends=True):
        text = line.rstrip("\n")
        if any(map(str.isalnum, text)):
            spans.append(Span(start, start + len(text)))
        start += len(line)
    return spans


def score_text(text: str) -> float:
    """A score between 0 and 1 that is correlated with the label."""
    return (zlib.crc32(text.encode()) % 101 + 50 * ("wrong" in text)) / 200


@dataclass
class Claiming:
    """The parts of a chain.

    Attributes:
        asked: How often each part was asked about each prompt, or the answer to it.
        broken: Parts and prompts that raise, and what.
        note: Called with each request as well.
    """

    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: dict[tuple[str, str], Exception] = field(default_factory=dict)
    note: Callable[[str, str], None] = lambda part, prompt: None  # noqa: ARG005 - as it is

    def _ask(self, part: str, prompt: str) -> None:
        self.asked[part, prompt] += 1
        self.note(part, prompt)
        if (part, prompt) in self.broken:
            raise self.broken[part, prompt]

    def count(self, part: str) -> int:
        """How often a part was asked in all."""
        return sum(count for (one, _), count in self.asked.items() if one == part)

    def generate(self, prompt: str) -> str:
        self._ask("draw", prompt)
        return write_answer(prompt)

    def split(self, answer: str) -> list[Span]:
        lines = find_lines(answer)
        self._ask("split", f"question {answer.split()[3]}" if lines else "none")
        return lines

    def verify(self, prompt: str, candidates: list[DrawnCandidate]) -> list[float]:
        self._ask("score", prompt)
        return [score_text(one.text) for one in candidates]

    def label(self, prompt: str, reference: Any, candidates: list[DrawnCandidate]) -> list[bool]:
        """Whether each claim says that it is right."""
        self._ask("label", prompt)
        return [str(reference) in one.text for one in candidates]


def make_parts(claiming: Claiming, **fields: Any) -> Components:
    """The components of a collection of claims."""
    own: dict[str, Any] = {
        "generator": claiming.generate,
        "verifier": claiming.verify,
        "labeler": claiming.label,
        "n": 1,
        "unit": "claims",
        "splitter": claiming.split,
        **IDS,
    }
    return Components(**{**own, **fields})
