"""Long answers: the recording, the figures of the documentation, and the page in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from examples.tests.running import REPOSITORY, read_section, serve_page
from langchain_cfc import CFCRunnable, FeatureMap, calibrate, evaluate, read_records
from langchain_cfc.decision import decide
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.evaluation import MethodReport
from langchain_cfc.records import ClaimsRecord, Records, tabulate
from langchain_cfc.runnable import ClaimsResult
from langchain_cfc.support.arrays import FloatArray
from tests.lengths import repetitions

EXAMPLE = REPOSITORY / "examples" / "long_answers"
FEATURES = "group(topic) + hat(mean_score, 3)"
SIZES = [(1280, 900), (390, 844)]  # a laptop, a phone


@pytest.fixture(scope="module")
def recording() -> Records:
    return read_records(EXAMPLE / "records.jsonl.gz")


@pytest.fixture(scope="module")
def answers(recording: Records) -> list[ClaimsRecord]:
    return list(recording.read_claims())


def test_long_answers_served_figures_equal_evaluation(
    recording: Records, answers: list[ClaimsRecord]
) -> None:
    artifact = calibrate(recording, unit="claims", at_most=1, alpha=0.2, features=FEATURES, test_fraction=0.4)
    chain = CFCRunnable(artifact=artifact, **make_replay_parts(recording))
    split = artifact.calibration.split
    held_out = [one for one in answers if split.find_part(one.id, one.cluster) == "test"]
    held_out = held_out[: repetitions(len(held_out), share=0.4)]
    kept, wrong, total = 0, 0, 0
    for record in held_out:
        result = chain.invoke(record.input)
        assert isinstance(result, ClaimsResult)
        decided = decide(artifact, tabulate([record], claims=True).draws)
        assert [one.kept for one in result.claims] == decided.accepted[0].tolist()
        assert result.guarantee.binding == "matched"
        for served, labelled in zip(result.claims, record.claims, strict=True):
            kept += served.kept
            wrong += served.kept and not labelled.supported
        total += len(result.claims)
    own = evaluate(artifact, held_out).methods["conditional"].claims
    assert own is not None
    assert (own.kept, own.unsupported_kept) == pytest.approx((kept / total, wrong / kept))


def measure(recording: Records, at_most: int, alpha: str) -> dict[str, MethodReport]:
    artifact = calibrate(
        recording, unit="claims", at_most=at_most, alpha=alpha, features=FEATURES, test_fraction=0.4
    )
    return evaluate(artifact, recording).methods


def test_long_answers_page_states_the_measured_figures(recording: Records) -> None:
    page = (REPOSITORY / "docs" / "long-answers.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (\d) \| (0\.\d) \| (\d+) % \| (\d+) % \| (\d+) % \| (\d+) % \|", page)
    assert len(rows) == 4
    for k, alpha, *stated in rows:
        own = measure(recording, int(k), alpha)["conditional"]
        assert own.claims is not None
        shares = (own.kept_promise, own.claims.kept, own.claims.emptied, own.claims.unsupported_kept)
        assert [round(100 * share) for share in shares] == [int(one) for one in stated]


def keep_by_topic(answers: list[ClaimsRecord], *, splits: int) -> list[dict[str, float]]:
    """Mean share of held-out answers that keep the promise, by topic, over random splits in halves.

    Returned are those of thresholds by topic, and those of one threshold for all.
    """
    rng = np.random.default_rng(11)
    # Categories are no secret of the labels: all of them are known before.
    topics_known = FeatureMap.parse("group(topic)").fit(tabulate(answers, claims=True).draws)
    kept: dict[bool, dict[str, list[FloatArray]]] = {False: {}, True: {}}
    for _ in range(splits):
        order = rng.permutation(len(answers))
        half = len(order) // 2
        artifact = calibrate(
            [answers[row] for row in order[:half]],
            unit="claims",
            at_most=1,
            alpha=0.2,
            features=topics_known,
        )
        test = [answers[row] for row in order[half:]]
        table = tabulate(test, claims=True)
        topics = np.array([one.metadata["topic"] for one in test])
        for marginal, by_topic in kept.items():
            found = decide(artifact, table.draws, marginal=marginal)
            right = artifact.parsed_set_rule.covers(table.correct, found.accepted)
            for topic in np.unique(topics).tolist():
                by_topic.setdefault(topic, []).append(right[topics == topic].astype(np.float64))
    return [
        {topic: float(np.mean(np.concatenate(one))) for topic, one in by_topic.items()}
        for by_topic in kept.values()
    ]


def test_thresholds_by_topic_keep_a_promise_that_one_threshold_breaks(
    answers: list[ClaimsRecord],
) -> None:
    # Given the recording, the mean of each topic over random halves is at least 1 - alpha in expectation. Of
    # one half it has a standard deviation below .06 (sixty answers calibrate a topic, sixty test it), of 20
    # halves, were they independent, .013; they overlap, so the tolerance is one of six of these.
    own, one = keep_by_topic(answers, splits=20)
    assert min(own.values()) >= 0.8 - 0.08
    assert min(one.values()) < 0.8 - 0.08


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of the page, started as the example's README says."""
    pytest.importorskip("streamlit", reason="the page is made with streamlit")
    command = "streamlit run examples/long_answers/long_answers_page.py"
    assert command in read_section("long_answers")
    with serve_page(command.split()[1:]) as address:
        yield address


def listen_to(page: Any, received: list[bytes]) -> None:
    """Record what the server sends to a page over its WebSocket."""

    def keep(payload: str | bytes) -> None:
        received.append(payload.encode() if isinstance(payload, str) else payload)

    page.on("websocket", lambda one: one.on("framereceived", keep))


@pytest.mark.long
def test_long_answers_page_sends_dropped_claims_only_after_a_click(site: str, recording: Records) -> None:
    pytest.importorskip("playwright.sync_api", reason="the page is looked at with playwright")
    from playwright.sync_api import expect

    from integrations.lab.tests.report import browser as look

    artifact = calibrate(recording, unit="claims", alpha="0.2", features=FEATURES, test_fraction=0.4)
    chain = CFCRunnable(artifact=artifact, show_rejected=True, **make_replay_parts(recording))
    split = artifact.calibration.split
    first = next(one for one in recording.read_claims() if split.find_part(one.id, one.cluster) == "test")
    result = chain.invoke(first.input)
    assert isinstance(result, ClaimsResult)
    dropped = [str(one.text) for one in result.claims if not one.kept]
    assert dropped
    with look.running() as chromium:
        for width, height in SIZES:
            page = chromium.new_page(viewport={"width": width, "height": height})
            received: list[bytes] = []

            listen_to(page, received)
            page.goto(site)
            answer = page.locator(".st-key-answer")
            expect(answer).to_contain_text(str(result.text or "I do not know."), timeout=30_000)
            expect(answer).to_be_in_viewport(ratio=1)
            assert not any(dropped[0].encode() in one for one in received)
            page.get_by_text("struck through").first.click()
            expect(page.locator(".st-key-whole del").first).to_contain_text(dropped[0][:20], timeout=30_000)
            wide = page.evaluate(
                "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
            assert not wide
            page.close()
