"""CFC under `evaluate` and `aevaluate`: the package's own figures, and nothing leaves that must not."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langchain_cfc_collect import Columns
from langchain_cfc_langsmith import Experiment
from langchain_core.tracers.langchain import wait_for_all_tracers
from langsmith import Client, aevaluate, evaluate
from langsmith.run_trees import get_cached_client
from langsmith.schemas import Example

from integrations.langsmith.tests.conftest import KEY
from integrations.langsmith.tests.endpoint import START, LangSmith
from langchain_cfc import CFCRunnable, PromptRecord
from langchain_cfc import evaluate as measure
from langchain_cfc.errors import CalibrationError
from langchain_cfc.labelers import LabelerInput, NormalisedMatch
from langchain_cfc.sampling import DrawnCandidate

COLUMNS = Columns(input="question", reference="answers", id="record")
RATES = ("coverage", "kept_promise", "abstention_rate", "not_certifiable_rate")


def make_example(record: PromptRecord, dataset: uuid.UUID) -> Example:
    return Example(
        id=uuid.uuid5(dataset, record.id),
        dataset_id=dataset,
        inputs={"question": record.input},
        outputs={"answers": record.reference},
        metadata={"record": record.id},
        created_at=START,
    )


@pytest.fixture
def examples(new_facts: list[PromptRecord]) -> list[Example]:
    dataset = uuid.uuid4()
    return [make_example(one, dataset) for one in new_facts]


@pytest.fixture
def expected_records(new_facts: list[PromptRecord]) -> list[PromptRecord]:
    """The recorded prompts, without the raw outputs of verifiers that did not serve, with new labels."""
    made = []
    for one in new_facts:
        answers = [DrawnCandidate(str(candidate.answer)) for candidate in one.candidates]
        labels = NormalisedMatch().invoke(
            LabelerInput(prompt=one.input, reference=one.reference, candidates=answers)
        )
        candidates = tuple(
            candidate.model_copy(update={"scores": None, "correct": correct})
            for candidate, correct in zip(one.candidates, labels, strict=True)
        )
        made.append(one.model_copy(update={"candidates": candidates}))
    return made


@pytest.fixture
def experiment(chain: CFCRunnable) -> Experiment:
    """The chain, with the labeler of its records."""
    return Experiment(chain, NormalisedMatch(), COLUMNS)


def evaluate_locally(experiment: Experiment, examples: list[Example], **settings: Any) -> Any:
    return evaluate(
        experiment.target,
        data=examples,
        evaluators=[experiment.evaluator],
        summary_evaluators=[experiment.summary],
        upload_results=False,
        **settings,
    )


def read_summary(results: Any) -> dict[str, Any]:
    return {one.key: one for one in results._summary_results["results"]}


def test_experiment_reports_the_rates_of_evaluate(
    experiment: Experiment, examples: list[Example], chain: CFCRunnable, expected_records: list[PromptRecord]
) -> None:
    results = evaluate_locally(experiment, examples)
    expected = measure(chain.artifact, expected_records, alpha=chain.guarantee.alpha)
    own = expected.methods["conditional"]
    said = read_summary(results)
    for name in RATES:
        assert said[f"cfc_{name}"].score == getattr(own, name)
    assert said["cfc_mean_set_size"].score == own.mean_set_size
    assert said["cfc_unmeasured"].score == 0
    assert f"promised 0.8; {expected.n_test} prompts" in said["cfc_coverage"].comment
    # And what was said run by run adds up to them.
    rows = [{one.key: one.score for one in row["evaluation_results"]["results"]} for row in results]
    assert len(rows) == len(expected_records)
    for key, name in (
        ("cfc_covered", "coverage"),
        ("cfc_kept_promise", "kept_promise"),
        ("cfc_abstained", "abstention_rate"),
        ("cfc_not_certifiable", "not_certifiable_rate"),
    ):
        assert sum(row[key] for row in rows) / len(rows) == pytest.approx(getattr(own, name))
    assert experiment.report().n_test == expected.n_test
    assert 0.0 < own.coverage < own.kept_promise


def test_aevaluate_reports_the_same_and_sends_nothing(
    langsmith: LangSmith, experiment: Experiment, examples: list[Example], chain: CFCRunnable
) -> None:
    expected = read_summary(evaluate_locally(Experiment(chain, NormalisedMatch(), COLUMNS), examples))

    async def run() -> Any:
        return await aevaluate(
            experiment.atarget,
            data=examples,
            evaluators=[experiment.evaluator],
            summary_evaluators=[experiment.summary],
            upload_results=False,
            max_concurrency=4,
        )

    said = read_summary(asyncio.run(run()))
    assert {key: one.score for key, one in said.items()} == {key: one.score for key, one in expected.items()}
    assert "/runs/multipart" not in list_sent_paths(langsmith)
    get_cached_client().close()


def list_sent_paths(langsmith: LangSmith) -> list[str]:
    wait_for_all_tracers()
    return [one.path for one in langsmith.asked]


def test_plain_target_sends_runs_to_langsmith(
    langsmith: LangSmith, chain: CFCRunnable, examples: list[Example]
) -> None:
    evaluate(
        lambda inputs: {"a": chain.invoke(inputs["question"]).best}, data=examples[:2], upload_results=False
    )
    assert "/runs/multipart" in list_sent_paths(langsmith)
    get_cached_client().close()


def test_experiment_in_langsmith_stores_feedback_and_outputs(
    langsmith: LangSmith, endpoint: str, experiment: Experiment, new_facts: list[PromptRecord]
) -> None:
    held = [
        {
            "inputs": {"question": one.input},
            "outputs": {"answers": one.reference},
            "metadata": {"record": one.id},
        }
        for one in new_facts
    ]
    langsmith.dataset("facts", held)
    client = Client(api_url=endpoint, api_key=KEY)
    results = evaluate(
        experiment.target,
        data="facts",
        evaluators=[experiment.evaluator],
        summary_evaluators=[experiment.summary],
        experiment_prefix="cfc",
        client=client,
    )
    client.flush()
    # LangChain traces what is below the target by a client of its own.
    wait_for_all_tracers()
    project = next(one["id"] for one in langsmith.projects.values() if one["name"] == results.experiment_name)
    own = experiment.report().methods["conditional"]
    about_all = {one["key"]: one["score"] for one in langsmith.feedback.values() if not one.get("run_id")}
    # LangSmith's client rounds to four decimals.
    assert about_all["cfc_coverage"] == pytest.approx(own.coverage, abs=5e-5)
    assert about_all["cfc_kept_promise"] == pytest.approx(own.kept_promise, abs=5e-5)
    targets = {name for name, run in langsmith.runs.items() if run.get("name") == "Target"}
    assert len(targets) == len(new_facts)
    covered = [said["cfc_covered"]["score"] for run, said in langsmith.by_run().items() if run in targets]
    assert len(covered) == len(new_facts)
    assert sum(covered) / len(covered) == own.coverage
    for name in targets:
        outputs = langsmith.runs[name]["outputs"]
        assert set(outputs) == {"answer", "abstained", "reason", "answers"}
        assert langsmith.runs[name]["session_name"] == results.experiment_name
        assert langsmith.by_run()[name]["cfc_covered"]["session_id"] == project
    client.close()
    get_cached_client().close()


@pytest.mark.parametrize("broken", ["unknown", "unlabelled"])
def test_experiment_counts_unmeasured_runs(
    experiment: Experiment, examples: list[Example], broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    change = (
        {"inputs": {"question": "never recorded"}} if broken == "unknown" else {"outputs": {"answers": None}}
    )
    results = evaluate_locally(experiment, [*examples[1:], examples[0].model_copy(update=change)])
    assert read_summary(results)["cfc_unmeasured"].score == 1
    assert len(experiment.records) == len(examples) - 1
    words = "never recorded" if broken == "unknown" else "reference"
    assert words in caplog.text


def test_experiment_refuses_repetitions(experiment: Experiment, examples: list[Example]) -> None:
    results = evaluate_locally(experiment, examples[:3], num_repetitions=2)
    assert read_summary(results) == {}
    with pytest.raises(CalibrationError, match="repetitions are not new prompts"):
        experiment.report()


def test_experiment_excludes_calibration_prompts(
    chain: CFCRunnable, facts: list[PromptRecord], experiment: Experiment
) -> None:
    split = chain.artifact.calibration.split
    dataset = uuid.uuid4()
    chosen = [*facts[:60]]
    evaluate_locally(experiment, [make_example(one, dataset) for one in chosen])
    new = [one for one in chosen if split.find_part(one.id, one.cluster) == "test"]
    assert 0 < len(new) < len(chosen)
    assert experiment.report().n_test == len(new)
    seen = Experiment(chain, NormalisedMatch(), COLUMNS)
    evaluate_locally(seen, [make_example(one, dataset) for one in chosen if one not in new])
    with pytest.raises(CalibrationError, match="no prompts are left"):
        seen.report()
