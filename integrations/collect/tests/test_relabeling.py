"""Relabelling deletes labels only if new ones can be made, and counts every label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import Budget, CallPolicy, CollectionResult, Components, Store, collect

from integrations.collect.tests.sharing import make_silent_options
from langchain_cfc import PromptRecord
from langchain_cfc.errors import CollectionError, StoreError
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from tests.fakes import TOKENS_IN, TOKENS_OUT, NumberedModel

SIZE, N = 30, 2
TOKENS = TOKENS_IN + TOKENS_OUT  # of each answer


def label_by_reference(_: Any, reference: Any, candidates: list[DrawnCandidate]) -> list[bool]:
    return [reference in candidate.text for candidate in candidates]


def make_labeler(knows: Callable[[int], bool]) -> Callable[..., list[bool]]:
    """Return a labeler that says no of each candidate, and fails for the prompts that it does not know."""

    def label(prompt: str, _: Any, candidates: list[DrawnCandidate]) -> list[bool]:
        if not knows(int(prompt)):
            msg = f"no label for {prompt}"
            raise RuntimeError(msg)
        return [False] * len(candidates)

    return label


def make_examples(reference: Any = "1", *, digests: bool = False) -> list[Example]:
    """Return examples, on request with ids that change with the reference."""
    ids = [f"{reference}-{k}" if digests else str(k) for k in range(SIZE)]
    return [Example(id=one, input=str(k), reference=reference) for k, one in enumerate(ids)]


def run(
    path: Path,
    labeler: Any = label_by_reference,
    name: str = "old",
    examples: list[Example] | None = None,
    generator_id: str = "g",
    **options: Any,
) -> CollectionResult:
    components = Components(
        generator=NumberedModel(echoing=True),
        verifier=lambda _, candidates: [0.5] * len(candidates),
        labeler=labeler,
        n=N,
        generator_id=generator_id,
        verifier_id="v",
        labeler_id=name,
    )
    given = make_examples() if examples is None else examples
    return collect(given, components, path, make_silent_options(**options))


def read(path: Path) -> list[PromptRecord]:
    with Store(path) as store:
        store.check()
        return list(store.read_records())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    assert run(path).status.labelled == SIZE
    return path


@pytest.mark.parametrize("digests", [False, True])
def test_relabel_uses_corrected_references_without_drawing_again(tmp_path: Path, digests: bool) -> None:
    path = tmp_path / "corrected.db"
    run(path, examples=make_examples(digests=digests))
    before, corrected = read(path), make_examples("2", digests=digests)
    with pytest.raises(StoreError, match=r"--relabel"):
        run(path, examples=corrected)
    assert read(path) == before
    notices: list[str] = []
    ended = run(path, examples=corrected, relabel=True, on_notice=notices.append)
    assert f"labelled by a corrected reference: {SIZE} prompts. " in "".join(notices)
    after = read(path)
    assert [one.id for one in after] == [one.id for one in corrected]
    for old, new in zip(before, after, strict=True):
        assert [one.text for one in new.candidates] == [one.text for one in old.candidates]
        assert [one.correct for one in new.candidates] == ["2" in str(one.text) for one in new.candidates]
    assert [one.reference for one in after] == ["2"] * SIZE
    with Store(path) as store:
        assert store.read_usage() == ended.status.usage
    # The next run has nothing left to do, and a second correction of the same references corrects none.
    assert run(path, examples=corrected).status.labelled == SIZE
    run(path, examples=corrected, relabel=True, on_notice=notices.append)
    assert len([one for one in notices if "corrected reference" in one]) == 1


def test_relabel_tries_the_labeler_on_the_corrected_reference(path: Path) -> None:
    def strict(_: str, reference: Any, candidates: list[DrawnCandidate]) -> list[bool]:
        if reference == "1":
            msg = "no such reference"
            raise RuntimeError(msg)
        return [False] * len(candidates)

    with pytest.raises(CollectionError, match="so the old ones were kept"):
        run(path, strict, "new", relabel=True)
    assert run(path, strict, "new", make_examples("2"), relabel=True).status.labelled == SIZE


def test_relabel_refuses_changed_inputs_and_keeps_labels(path: Path) -> None:
    before, changed = read(path), make_examples("2")
    changed[3] = changed[3].model_copy(update={"input": "another question"})
    with pytest.raises(StoreError, match="the prompt '3' has another input"):
        run(path, examples=changed, relabel=True)
    with pytest.raises(StoreError, match=r"generator\.id was 'g' and is now 'h'"):
        run(path, make_labeler(lambda _: True), "new", relabel=True, generator_id="h")
    assert read(path) == before


def test_relabel_refuses_ambiguous_references_and_keeps_labels(tmp_path: Path) -> None:
    def example(name: str, reference: str) -> Example:
        return Example(id=name, input="0", reference=reference)

    path = tmp_path / "twice.db"
    run(path, examples=[example("a", "1"), example("b", "2"), *make_examples()[1:]])
    before = read(path)
    # Both were corrected: which candidates belong to which is not known.
    with pytest.raises(StoreError, match="if no other prompt has the same input"):
        run(path, examples=[example("c", "3"), example("d", "4"), *make_examples()[1:]], relabel=True)
    # One id, two references.
    with pytest.raises(StoreError, match="has another reference"):
        run(path, examples=[example("a", "3"), example("a", "4"), *make_examples()[1:]], relabel=True)
    assert read(path) == before


def test_relabel_reports_stored_prompts_missing_from_the_dataset(path: Path) -> None:
    notices: list[str] = []
    some = make_examples("2")[:10]
    run(path, examples=some, relabel=True, on_notice=notices.append)
    assert "labelled by a corrected reference: 10 prompts. " in "".join(notices)
    assert any(f"does not hold them: {SIZE - 10} stored prompts" in one for one in notices)
    assert [one.reference for one in read(path)] == ["2"] * 10 + ["1"] * (SIZE - 10)


def test_relabel_keeps_labels_if_the_labeler_always_fails(path: Path) -> None:
    before = read(path)
    with pytest.raises(CollectionError, match=r"so the old ones were kept.* failed with .*no label for 24"):
        run(path, make_labeler(lambda _: False), "new", relabel=True)
    assert read(path) == before
    # The store still belongs to the old labeler, which has nothing left to do.
    assert run(path).status.labelled == SIZE


def test_relabel_tries_an_unreachable_judge_on_one_prompt_only(path: Path) -> None:
    tried: list[str] = []

    def fail(prompt: str, _: Any, __: list[DrawnCandidate]) -> list[bool]:
        tried.append(prompt)
        msg = "down"
        raise ConnectionError(msg)

    with pytest.raises(CollectionError, match="so the old ones were kept"):
        run(path, fail, "new", relabel=True, call_policy=CallPolicy(attempts=1))
    assert tried == ["0"]


def test_relabel_keeps_labels_if_the_budget_is_used_up(path: Path) -> None:
    before = read(path)
    new = make_labeler(lambda _: True)
    with pytest.raises(CollectionError, match=r"the budget .* so the old ones were kept"):
        run(path, new, "new", relabel=True, budget=Budget(max_tokens=SIZE * N * TOKENS))
    assert read(path) == before
    assert run(path, new, "new", relabel=True, budget=Budget(max_tokens=10**6)).status.labelled == SIZE
    assert not any(one.correct for record in read(path) for one in record.candidates)


def test_relabel_counts_the_tokens_of_the_trial_label(path: Path) -> None:
    judge = NumberedModel(echoing=True)

    def ask(prompt: str, reference: Any, candidates: list[DrawnCandidate]) -> list[bool]:
        return [reference in str(judge.invoke(prompt).content) for _ in candidates]

    run(path, ask, "judge", relabel=True)
    with Store(path) as store:
        assert store.read_usage().tokens == (SIZE * N + SIZE * N + N) * TOKENS
