from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from langchain_cfc_lab.compare import compare
from langchain_cfc_lab.comparison_report import ComparisonReport
from langchain_cfc_lab.splits import measure_splits

from integrations.lab.tests.comparison.sent import compute_squared, kill_at_two, read_threads
from integrations.lab.tests.comparison.worlds import count_progress, draw_world, tabulate_facts
from langchain_cfc.errors import CalibrationError, CFCError, FeatureError
from tests.lengths import mostly_long


@mostly_long(("splits", "jobs"), [(5, 2), (5, 3), (1, 1), (1, 3), (5, 1), (60, 2), (60, 1)], quick=2)
def test_measure_splits_keeps_order_for_any_number_of_jobs(splits: int, jobs: int) -> None:
    seen: list[int] = []
    assert measure_splits(compute_squared, splits, jobs, count_progress(seen)) == [
        compute_squared(number) for number in range(splits)
    ]
    assert seen == [splits] * splits


@pytest.mark.long
def test_measure_splits_limits_threads_of_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert {
        threads for _, threads, process in measure_splits(read_threads, 8, 2) if process != os.getpid()
    } == {"1"}
    # The control: this process has no such limit.
    assert measure_splits(read_threads, 2, 1) == [(number, None, os.getpid()) for number in range(2)]


@pytest.mark.long
def test_compare_gives_the_same_report_for_any_number_of_jobs() -> None:
    labelled = tabulate_facts().take(np.arange(0, 1200, 3))

    def report(jobs: int, seed: int = 0) -> ComparisonReport:
        return compare(
            labelled,
            alpha=("0.2", "0.4"),
            methods=["conditional", "learned", "CFC-PAC", "TopK", "sampling"],
            groups="hard(entropy, max_score, 0.9)",
            splits=4,
            seed=seed,
            jobs=jobs,
        )

    alone, together = report(1), report(2)
    assert alone == together == report(3)
    assert alone.model_dump_json() == together.model_dump_json()
    assert alone != report(1, seed=1)  # the control


def test_compare_names_an_unknown_category_for_any_number_of_jobs() -> None:
    labelled = draw_world(1, 400)
    metadata = [dict(one) for one in labelled.draws.metadata]
    metadata[7]["topic"] = "rare"
    with_one = replace(labelled, draws=replace(labelled.draws, metadata=tuple(metadata)))
    messages = []
    for jobs in (1, 2):
        with pytest.raises(FeatureError, match="Calibrate with such prompts") as caught:
            compare(with_one, features="group(topic)", methods=["conditional"], splits=8, jobs=jobs)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert f"topic of record '{labelled.ids[7]}' is 'rare'" in messages[0]


@pytest.mark.long
def test_measure_splits_reports_a_killed_process() -> None:
    with pytest.raises(CalibrationError, match="use fewer jobs"):
        measure_splits(kill_at_two, 6, 2)


@pytest.mark.parametrize("jobs", [0, -1, 2.5])
def test_compare_refuses_an_invalid_number_of_jobs(jobs: object) -> None:
    with pytest.raises(CFCError, match="jobs"):
        compare(draw_world(1), methods=["marginal"], splits=2, jobs=jobs)  # type: ignore[arg-type]
