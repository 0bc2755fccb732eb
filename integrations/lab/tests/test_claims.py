"""Functions of the lab that are about several answers refuse claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_lab import compare, plan_bot, plan_calibration, suggest, suggest_draws

from langchain_cfc import evaluate
from langchain_cfc.errors import InputError
from langchain_cfc.records import tabulate
from tests.claims.worlds import make_answers
from tests.factories import make_artifact


@pytest.mark.parametrize(
    "use",
    [
        tabulate,
        lambda records: compare(records, alpha=0.2, splits=1),
        lambda records: suggest(records, alpha=0.2),
        lambda records: suggest_draws(records, alpha=0.2),
        lambda records: plan_calibration(tabulate(records, claims=True), alpha=0.2),
        lambda records: plan_bot(tabulate(records, claims=True), max_wrong_rate="0.1"),
        lambda records: evaluate(make_artifact(), records),
    ],
)
def test_functions_about_several_answers_refuse_claims(
    use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="claims"):
        use(make_answers(np.random.default_rng(13), 60))
    assert list(tmp_path.iterdir()) == []
