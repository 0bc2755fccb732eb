"""Labels of the shipped recording, against labels made from its references."""

from __future__ import annotations

from collections import Counter

import pytest
from langchain_cfc_collect import compare_labels

from langchain_cfc.labelers import BaseLabeler, NormalisedMatch, NumericMatch
from langchain_cfc.records import PromptRecord
from langchain_cfc.sampling import DrawnCandidate
from tests.recordings import list_facts

NUMBERS = {"addition", "multiplication", "atomic number"}


@pytest.fixture(scope="module")
def records() -> list[PromptRecord]:
    return list_facts()


def label_record(labeler: BaseLabeler, record: PromptRecord, reference: object) -> list[bool]:
    """Labels of what the recording's answer extractor made of each candidate."""
    candidates = [DrawnCandidate(candidate.answer_key) for candidate in record.candidates]
    return list(
        map(bool, labeler.invoke({"prompt": record.input, "reference": reference, "candidates": candidates}))
    )


@pytest.mark.long
def test_normalised_match_reproduces_recorded_labels_up_to_accents(records: list[PromptRecord]) -> None:
    differing = Counter(
        (candidate.answer_key, label)
        for record in records
        for candidate, label in zip(
            record.candidates, label_record(NormalisedMatch(), record, record.reference), strict=True
        )
        if label != candidate.correct
    )
    # 11 of 12,240. The recording forgave accents and a leading article.
    assert differing == {("Colón", False): 9, ("Iceland króna", False): 1, ("The Georgian Lari", False): 1}


def test_numeric_match_reproduces_recorded_labels_of_numbers(records: list[PromptRecord]) -> None:
    numbers = [record for record in records if record.metadata["topic"] in NUMBERS]
    assert len(numbers) == 468
    for record in numbers:
        expected = [candidate.correct for candidate in record.candidates]
        assert label_record(NumericMatch(), record, record.reference) == expected


def test_control_references_of_other_prompts_do_not_reproduce_labels(records: list[PromptRecord]) -> None:
    # The negative control: what reproduces labels is the reference.
    numbers = [record for record in records if record.metadata["topic"] == "multiplication"]
    others = [*numbers[1:], numbers[0]]
    made = [
        label
        for record, other in zip(numbers, others, strict=True)
        for label in label_record(NumericMatch(), record, other.reference)
    ]
    recorded = [candidate.correct for record in numbers for candidate in record.candidates]
    prompts = [record.id for record in numbers for _ in record.candidates]
    found = compare_labels(made, recorded, prompts)
    assert found.kappa is not None
    assert found.kappa.value is not None
    assert abs(found.kappa.value) < 0.05
