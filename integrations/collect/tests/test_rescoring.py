"""Rescoring gives the records that a collection with the new verifier would, without drawing or labelling."""

from __future__ import annotations

import shlex
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import (
    Budget,
    CallPolicy,
    CollectionResult,
    Components,
    Store,
    collect,
    import_samples,
    rescore,
)
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda

from integrations.collect.tests.sharing import make_silent_options
from langchain_cfc import calibrate
from langchain_cfc.artifact import AttemptLedger, open_attempts
from langchain_cfc.errors import CollectionError, InputError, StoreError
from langchain_cfc.execution import Steps
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import (
    SelfConsistency,
    SequenceProbability,
    VerifierEnsemble,
    VerifierInput,
    from_evaluator,
)
from tests.cli.running import run
from tests.fakes import NumberedModel

SIZE, N = 6, 3
BY_LENGTH = "by-length"


class Bot:
    """Answers with log-probabilities, never twice the same way, and counts its answers."""

    def __init__(self) -> None:
        self.calls = 0

    def answer(self, prompt: str) -> AIMessage:
        self.calls += 1
        tokens = [{"token": f"{prompt} ", "logprob": -0.1 * self.calls}]
        said = {"model_name": "m", "logprobs": {"content": tokens}}
        return AIMessage(f"{prompt} {self.calls % 2}.", response_metadata=said)


def score_by_length(_: Any, candidates: list[DrawnCandidate]) -> list[float]:
    return [1 / (1 + len(one.text)) for one in candidates]


def label(_: Any, reference: Any, candidates: list[DrawnCandidate]) -> list[bool]:
    return [reference in one.text for one in candidates]


def make_parts(bot: Bot, verifier: Any, **more: Any) -> Components:
    given: dict[str, Any] = {
        "generator": RunnableLambda(bot.answer),
        "verifier": verifier,
        "labeler": label,
        "n": N,
        "generator_id": "bot",
        "labeler_id": "label",
        "answer": lambda text: text.rstrip("."),
        "answer_id": "answer",
        "metadata": lambda prompt: {"length": len(prompt)},
        **more,
    }
    return Components(**given)


def collect_to(path: Path, verifier: Any, bot: Bot | None = None, **options: Any) -> CollectionResult:
    bot = bot or Bot()
    verifier_id = BY_LENGTH if verifier is score_by_length else None
    parts = make_parts(bot, verifier, verifier_id=verifier_id)
    # One prompt at a time, so that two collections draw the same.
    options = {"call_policy": CallPolicy(concurrency=1), **options}
    return collect(make_examples(), parts, path, make_silent_options(**options))


def make_examples(size: int = SIZE) -> list[Example]:
    return [Example(id=f"p{k}", input="?" * (k + 1), reference="1", metadata={"k": k}) for k in range(size)]


def read(path: Path) -> tuple[Any, list[Any]]:
    with Store(path) as store:
        store.check()
        return store.read_provenance(), sorted(store.read_all(), key=lambda one: one.id)


@pytest.mark.parametrize("keep_payloads", [False, True])
@pytest.mark.parametrize("verifier", [SelfConsistency(), {"a": SelfConsistency(), "b": score_by_length}])
def test_rescored_records_equal_those_of_a_new_collection(
    tmp_path: Path, verifier: Any, keep_payloads: bool
) -> None:
    old, new, fresh = tmp_path / "old.db", tmp_path / "new.db", tmp_path / "fresh.db"
    collect_to(old, score_by_length, keep_payloads=keep_payloads)
    before = read(old)
    collect_to(fresh, verifier)
    ended = rescore(old, verifier, new, make_silent_options(keep_payloads=keep_payloads))
    assert ended.complete
    assert read(new) == read(fresh)
    assert read(old) == before
    # The new store can be continued, and rescored itself.
    bot = Bot()
    collect_to(new, verifier, bot)
    assert not bot.calls
    rescore(new, score_by_length, tmp_path / "back.db", make_silent_options(), verifier_id=BY_LENGTH)
    assert read(tmp_path / "back.db") == before


class Counted(SelfConsistency):
    """Counts how often it is asked, and extracts answers by a call if `calls` is true."""

    def __init__(self, *, calls: bool) -> None:
        super().__init__(lambda text: text) if calls else super().__init__()
        self.asked = 0

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        self.asked += 1
        return (yield from super().flow(given, config))


@pytest.mark.parametrize("calls", [False, True])
def test_verifier_that_only_computes_is_asked_at_once_and_others_in_runs(tmp_path: Path, calls: bool) -> None:
    collect_to(tmp_path / "old.db", score_by_length)
    records = []
    for name, config in (("plain", None), ("traced", {"callbacks": [Traced()]})):
        verifier = Counted(calls=calls)
        options = make_silent_options(config=config)
        rescore(tmp_path / "old.db", verifier, tmp_path / f"{name}.db", options, verifier_id="counted")
        # The first prompt is asked about twice: to try the verifier, and without a run.
        assert verifier.asked == SIZE + (config is None)
        records.append(read(tmp_path / f"{name}.db"))
    assert records[0] == records[1]


class Traced(BaseCallbackHandler):
    """A callback, with which every verifier is asked in a run."""


TWO: dict[str, Any] = {"vote": SelfConsistency(), "probable": SequenceProbability()}


@pytest.mark.parametrize("weights", [{"vote": 1, "probable": 3}, {"vote": 0, "probable": 1}, {"probable": 1}])
def test_recorded_outputs_give_the_records_of_other_weights(
    tmp_path: Path, weights: dict[str, float]
) -> None:
    old, new, fresh = tmp_path / "old.db", tmp_path / "new.db", tmp_path / "fresh.db"
    collect_to(old, TWO)
    collect_to(fresh, VerifierEnsemble({name: TWO[name] for name in weights}, weights))
    # Messages are gone, so neither verifier could score again.
    rescore(old, {}, new, make_silent_options(), weights=weights)
    assert read(new) == read(fresh)


def test_recorded_outputs_are_used_beside_prompts_without_any_answer(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    parts = make_parts(Bot(), {"vote": SelfConsistency(), "length": score_by_length})
    generator: Any = RunnableLambda(lambda prompt: "" if prompt == "?" * 2 else f"{prompt} 1")
    parts = Components(**{**vars(parts), "generator": generator})
    collect(make_examples(), parts, old, make_silent_options())
    weights = {"vote": 0.0, "length": 1.0}
    assert rescore(old, {}, new, make_silent_options(), weights=weights).complete
    for record, before in zip(read(new)[1], read(old)[1], strict=True):
        assert [one.scores for one in record.candidates] == [one.scores for one in before.candidates]
        if record.id != "p1":
            assert all(one.scores and one.score == one.scores["length"] for one in record.candidates)


def test_further_verifier_stands_beside_the_one_that_scored(tmp_path: Path) -> None:
    old, new, fresh = tmp_path / "old.db", tmp_path / "new.db", tmp_path / "fresh.db"
    collect_to(old, SequenceProbability())
    weights = {"probable": 3, "vote": 1}
    collect_to(fresh, VerifierEnsemble({name: TWO[name] for name in weights}, weights))
    added = {"vote": SelfConsistency()}
    for given in ({"probable": 1, "other": 1, "vote": 1}, {"vote": -1}):
        with pytest.raises(InputError, match="weights"):
            rescore(old, added, new, make_silent_options(), weights=given)
    with pytest.raises(InputError, match="mapping by name"):
        rescore(old, SelfConsistency(), new, make_silent_options(), weights=weights)
    unlabelled = tmp_path / "unlabelled.db"
    import_samples([{"question": "?", "answer": ["1", "2"]}], unlabelled)
    with pytest.raises(InputError, match="no labelled prompt yet"):
        rescore(unlabelled, added, new, make_silent_options(), weights=weights)
    assert not new.exists()
    rescore(old, added, new, make_silent_options(), weights=weights)
    assert read(new) == read(fresh)


def test_command_makes_another_mean_of_recorded_outputs(tmp_path: Path) -> None:
    old, new, fresh = tmp_path / "old.db", tmp_path / "new.db", tmp_path / "fresh.db"
    collect_to(old, TWO)
    command = ("store", "rescore", old, "--out", new, "--json")
    run(*command, "--set", "weights.vote=1", "--set", "weights.gone=2").assert_refused("gone", "recorded")
    run(*command, "--set", "weights.vote=much").assert_refused("weights.vote")
    run(*command).assert_refused("verifier")
    done = run(*command, "--set", "weights.vote=1", "--set", "weights.probable=3")
    assert (done.code, done.data["finished"], done.data["complete"]) == (0, SIZE, True)
    collect_to(fresh, VerifierEnsemble(TWO, {"vote": 1, "probable": 3}))
    assert read(new) == read(fresh)


def test_stored_log_probabilities_are_scored_and_removed_ones_refused(tmp_path: Path) -> None:
    kept, stripped, new, fresh = (tmp_path / f"{name}.db" for name in ("kept", "stripped", "new", "fresh"))
    collect_to(kept, score_by_length, keep_payloads=True)
    collect_to(stripped, score_by_length)
    collect_to(fresh, SequenceProbability())
    rescore(kept, SequenceProbability(), new, make_silent_options())
    assert read(new) == read(fresh)
    refused = tmp_path / "refused.db"
    with pytest.raises(CollectionError, match=r"nothing was written.*keep_payloads"):
        rescore(stripped, SequenceProbability(), refused, make_silent_options())
    assert not refused.exists()


def test_rescoring_with_judge_resumes_after_budget_and_pays_each_text_once(tmp_path: Path) -> None:
    old, new, whole = tmp_path / "old.db", tmp_path / "new.db", tmp_path / "whole.db"
    collect_to(old, score_by_length)
    models = [NumberedModel(echoing=True) for _ in range(3)]
    ask = RunnableLambda(lambda given: given["candidate"])
    judges = [
        from_evaluator(ask | model | (lambda said: 1 / len(said.text)), higher_is_better=False)
        for model in models
    ]
    one_prompt = CallPolicy(concurrency=1)
    rescore(old, judges[0], whole, make_silent_options(call_policy=one_prompt), verifier_id="j")
    with Store(whole) as store:
        tokens = sum(one.input_tokens + one.output_tokens for one in store.read_usage().calls)
    budget = Budget(max_tokens=tokens // 2)
    limited = make_silent_options(budget=budget, call_policy=one_prompt)
    first = rescore(old, judges[1], new, limited, verifier_id="j")
    assert not first.complete
    assert 0 < first.status.labelled < SIZE
    assert rescore(old, judges[2], new, make_silent_options(), verifier_id="j").complete
    assert len(models[1].requests) + len(models[2].requests) == len(models[0].requests)
    assert read(new) == read(whole)


def test_rescoring_continues_with_prompts_that_the_old_verifier_failed(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"

    def fail(_: Any, candidates: list[DrawnCandidate]) -> list[float]:
        raise ValueError(len(candidates))

    bot = Bot()
    with pytest.raises(CollectionError, match="the first prompt failed: "):
        collect(make_examples(), make_parts(bot, fail, verifier_id="f"), old, make_silent_options())
    drawn = bot.calls
    for _ in range(2):
        ended = rescore(old, SelfConsistency(), new, make_silent_options())
        assert not ended.complete
        assert (ended.status.remaining, ended.status.failed) == (drawn // N, 0)
    again = Bot()
    assert collect_to(new, SelfConsistency(), again).complete
    assert again.calls == SIZE * N - drawn


def test_unusable_target_is_refused_before_the_verifier_is_called(tmp_path: Path) -> None:
    asked: list[str] = []

    def judge(prompt: str, candidates: list[DrawnCandidate]) -> list[float]:
        asked.append(prompt)
        return [0.5] * len(candidates)

    collect_to(tmp_path / "old.db", score_by_length)
    with pytest.raises(InputError):
        rescore(
            tmp_path / "old.db", judge, tmp_path / "missing/new.db", make_silent_options(), verifier_id="j"
        )
    assert not asked


def test_interrupted_copy_leaves_no_prompt_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    collect_to(old, score_by_length)
    monkeypatch.setattr("langchain_cfc_collect.store.dataset.PAGE_SIZE", 2)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "read_finished", _break_off)
        patch.setattr("langchain_cfc_collect.rescoring.Rescorer.try_verifier", _do_nothing)
        with pytest.raises(KeyboardInterrupt):
            rescore(old, SelfConsistency(), new, make_silent_options())
    with Store(new) as store:
        assert not sum(store.count_stages().values())
    assert rescore(old, SelfConsistency(), new, make_silent_options()).complete


def test_rescoring_is_not_continued_from_a_store_with_corrected_references(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    collect_to(old, score_by_length)
    rescore(old, SelfConsistency(), new, make_silent_options())
    assert rescore(old, SelfConsistency(), new, make_silent_options()).complete
    corrected = [one.model_copy(update={"reference": "0"}) for one in make_examples()]
    parts = make_parts(Bot(), score_by_length, verifier_id=BY_LENGTH)
    collect(corrected, parts, old, make_silent_options(relabel=True))
    # Labels by both references would stand in one store.
    with pytest.raises(StoreError, match="another reference"):
        rescore(old, SelfConsistency(), new, make_silent_options())


async def _do_nothing(*_: Any) -> None:
    pass


_read_finished = Store.read_finished


def _break_off(store: Store, *given: Any, **options: Any) -> Any:
    prompts = _read_finished(store, *given, **options)
    yield from islice(prompts, 5)
    raise KeyboardInterrupt


def test_rescoring_refuses_what_would_mix_records(tmp_path: Path) -> None:
    old, other, new = tmp_path / "old.db", tmp_path / "other.db", tmp_path / "new.db"
    collect_to(old, score_by_length)
    bot = Bot()
    bot.calls = 1  # so that it answers otherwise
    collect_to(other, score_by_length, bot)
    rescore(old, SelfConsistency(), new, make_silent_options())
    before = read(new)
    with pytest.raises(StoreError, match="other candidates"):
        rescore(other, SelfConsistency(), new, make_silent_options())
    with pytest.raises(StoreError, match="another verifier"):
        rescore(old, SelfConsistency(), old, make_silent_options())
    for given in ({"relabel": True}, {"call_policy": CallPolicy(batch=True)}):
        with pytest.raises(InputError, match="leave"):
            rescore(old, SelfConsistency(), new, make_silent_options(**given))
    assert read(new) == before


@pytest.mark.parametrize(
    ("rule", "is_refused"), [("below(0.5, at_most=3)", True), ("lead(2, at_most=3)", False)]
)
def test_rescoring_refuses_only_rules_that_look_at_scores(
    tmp_path: Path, rule: str, is_refused: bool
) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    verifier = partial(score_by_length)
    verifier.separate_scores = True  # type: ignore[attr-defined]  # as a part may say
    parts = make_parts(Bot(), verifier, n=None, draws=rule, verifier_id="sep")
    collect(make_examples(), parts, old, make_silent_options())
    if is_refused:
        with pytest.raises(InputError, match="looks at scores"):
            rescore(old, SelfConsistency(), new, make_silent_options())
        assert not new.exists()
    else:
        assert rescore(old, SelfConsistency(), new, make_silent_options()).complete


def test_claims_are_scored_again_without_being_split(tmp_path: Path) -> None:
    old, new, fresh = tmp_path / "old.db", tmp_path / "new.db", tmp_path / "fresh.db"
    more = {"unit": "claims", "n": 2, "answer": None, "answer_id": None}
    for path, verifier in ((old, score_by_length), (fresh, SelfConsistency())):
        parts = make_parts(Bot(), verifier, verifier_id="v", **more)
        parts = Components(**{**vars(parts), "generator": RunnableLambda(lambda _: "It is 1. It is 2.")})
        collect(make_examples(), parts, path, make_silent_options())
    assert rescore(old, SelfConsistency(), new, make_silent_options(), verifier_id="v").complete
    assert read(new) == read(fresh)


def test_tests_on_labels_count_for_rescored_store(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    collect_to(old, score_by_length)
    artifact = calibrate(read(old)[1], alpha=0.5, fit_fraction=0.0, features="1")
    with open_attempts([old]) as attempts:
        attempts.record(artifact)
    rescore(old, SelfConsistency(), new, make_silent_options())
    with open_attempts([new]) as carried:
        assert carried.ledger == AttemptLedger.collect(artifact)


def test_refusal_of_collect_names_the_command_that_helps(tmp_path: Path) -> None:
    old = tmp_path / "old store.db"
    (tmp_path / "q.csv").write_text("question,answer\n1,1\n2,2\n3,3\n4,4\n")
    source = f"--source {tmp_path}/q.csv --question question --reference answer -n 2"
    parts = "--generator tests.fakes:NumberedModel --labeler NormalisedMatch --set generator.id=g"
    fixed: list[str | Path] = ["collect", *source.split(), *parts.split()]
    verifiers = (
        "integrations.collect.tests.test_rescoring:score_by_length",
        "langchain_cfc.verifiers:SelfConsistency",
    )
    assert run(*fixed, "--verifier", verifiers[0], "--store", old).code == 0
    refused = run(*fixed, "--verifier", verifiers[1], "--store", old)
    assert refused.code == 2
    lines = [line.strip() for line in refused.err.splitlines()]
    (command,) = [line for line in lines if line.startswith("langchain-cfc store rescore")]
    assert run(*shlex.split(command)[1:], "--verifier", verifiers[1]).code == 0
    new = tmp_path / "old store-rescored.db"
    assert run(*fixed, "--verifier", verifiers[1], "--store", new).code == 0
    assert len(read(new)[1]) == 4
