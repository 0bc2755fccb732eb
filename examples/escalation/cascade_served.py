"""The cascade as it serves: cheap bot, else strong bot, else a person, put together with `or_else`.

    python cascade_served.py                   the test questions of one split
    python cascade_served.py --questions 20    only so many of them

What is served here is decided as `cascade_table` measures it; a test compares the two question by question.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from cascade import DELTA, RATE_CHEAP, RATE_STRONG, FirstTier, Split, certify_second_tier
from two_models import CHEAP, STRONG

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, PromptRecord
from langchain_cfc.verifiers import normalise_answer


@dataclass
class Person:
    """A person who is asked where neither model answers: here a list to be worked off.

    Attributes:
        questions: What waits.
    """

    questions: list[str] = field(default_factory=list)

    def __call__(self, question: str) -> str:
        """Take a question in."""
        self.questions.append(question)
        return "A person will answer this."


@dataclass(frozen=True)
class ServedQuestion:
    """The tier that served one question, and its outcome.

    Attributes:
        tier: `cheap`, `strong` or `person`.
        right: Whether its answer is correct; None where a person is asked.
    """

    tier: str
    right: bool | None


def serve(
    cheap: CalibrationArtifact, strong: CalibrationArtifact, asked: Sequence[PromptRecord], person: Person
) -> list[ServedQuestion]:
    """Ask the cascade a list of questions, one after the other.

    Args:
        cheap: Artifact of the cheap bot.
        strong: Artifact of the strong bot, certified on questions on which the cheap one abstains.
        asked: Questions; their references say which answers are correct.
        person: Asked last.

    Returns:
        What each question got.
    """
    first = CFCRunnable(artifact=cheap, **CHEAP.parts())
    second = CFCRunnable(artifact=strong, **STRONG.parts())
    chain = first.or_else(second.or_else(person))
    correct = _collect_correct()
    return [_classify(chain.invoke(one.input), cheap.digest, correct[one.id]) for one in asked]


def _classify(result: object, cheap_digest: str, correct: set[str]) -> ServedQuestion:
    if not isinstance(result, CFCResult):
        return ServedQuestion("person", None)
    # Every result says whose promise it carries.
    tier = "cheap" if result.guarantee.artifact_digest == cheap_digest else "strong"
    return ServedQuestion(tier, normalise_answer(str(result.best)) in correct)


def _collect_correct() -> dict[str, set[str]]:
    """Collect by question what counts as correct: its references, and candidates labelled so."""
    found: dict[str, set[str]] = defaultdict(set)
    for record in (*CHEAP.records, *STRONG.records):
        labelled = [str(one.text) for one in record.candidates if one.correct]
        found[record.id] |= {normalise_answer(text) for text in (*record.reference, *labelled)}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Certify on one split, serve its test questions, and say what happened."""
    parser = argparse.ArgumentParser(description="Serve a cascade of two models and a person.")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives another split")
    parser.add_argument("--questions", type=int, help="how many test questions to ask; all if left out")
    options = parser.parse_args(arguments)
    split = Split.of(CHEAP, options.seed)
    first = FirstTier.of(CHEAP, split)
    strong = certify_second_tier(STRONG, split, first)
    asked = [CHEAP.records[row] for row in split.test.tolist()][: options.questions]
    person = Person()
    served = serve(first.artifact, strong, asked, person)
    tiers = Counter(one.tier for one in served)
    passed_on = int((~first.on_second.answered).sum())
    print(f"of {len(split.second)} questions the cheap bot passes {passed_on} on to certify the strong one")
    for tier, rate in (("cheap", RATE_CHEAP), ("strong", RATE_STRONG)):
        wrong = sum(one.tier == tier and not one.right for one in served)
        print(
            f"{tier}: {tiers[tier]} of {len(asked)} questions, {wrong} wrongly (certified: {float(rate):.0%})"
        )
    print(f"person: {tiers['person']} of {len(asked)} questions")
    largest = max(float(RATE_CHEAP), float(RATE_STRONG))
    print(f"with confidence {1 - 2 * float(DELTA):.0%}, at most {largest:.0%} of the bots' answers are wrong")
    print("the person's list begins:", *person.questions[:3], sep="\n  ")


if __name__ == "__main__":
    main()
