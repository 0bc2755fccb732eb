"""The report shows the cut on the mean score."""

from __future__ import annotations

import html
from io import StringIO
from typing import cast

from langchain_cfc_lab.report.page import render_report
from rich.console import Console
from scipy import stats

from langchain_cfc import calibrate
from langchain_cfc.cli._artifact import print_artifact
from langchain_cfc.evaluation import evaluate
from langchain_cfc.records import tabulate
from tests.certificates.prompts import make_replay_chain, prompts
from tests.factories import change_candidates

DELTA = "0.125"


def test_bot_tests_each_group_separately() -> None:
    records = prompts(5, 1500, decimals=12)
    made = calibrate(
        records, features="group(topic)", max_wrong_rate="0.2", delta=DELTA, wrong_rate_groups=True
    )
    certificate = made.certified_bot.certificates[0]
    everyone, *groups = certificate.groups
    assert [one.certified for one in groups] == [True] * 3
    for one, share in zip(certificate.groups, [0.05, *[0.05 / 3] * 3], strict=True):
        assert stats.binom.cdf(one.wrong, one.answered, 0.2) <= share
    assert sum(one.answered for one in groups) == everyone.answered
    # Control: a group whose answers are all wrong is not certified, whatever the others are.
    spoiled = [
        change_candidates(one, correct=False) if one.metadata["topic"] == "sea" and row % 4 == 2 else one
        for row, one in enumerate(records)
    ]
    worse = calibrate(
        spoiled, features="group(topic)", max_wrong_rate="0.2", delta=DELTA, wrong_rate_groups=True
    )
    certificate = worse.certified_bot.certificates[0]
    (missing,) = (one for one in certificate.groups if not one.certified)
    said = f"not certified in: topic: sea ({missing.wrong} of {missing.answered} wrong)"
    guarantee = worse.make_bot_guarantee()
    assert sum(said in one for one in guarantee.not_promised) == 1
    console = Console(width=10_000, file=StringIO())
    print_artifact(console, worse)
    page = render_report(artifact=worse, evaluation=evaluate(worse, tabulate(prompts(6, 300))))
    chain = make_replay_chain(worse, spoiled[:20])
    results = [chain.invoke(one.input) for one in spoiled[:20]]
    explained = [one.explain() for one in results]
    printed = " ".join(cast("StringIO", console.file).getvalue().split())
    assert all(said in one for one in [html.unescape(page), printed, guarantee.sentence, *explained])
    # Control: where every group is certified nothing is said of groups that are not.
    assert made.certified_bot.certificates[0].uncertified == ""
    assert not any("not certified in" in one for one in made.make_bot_guarantee().not_promised)
