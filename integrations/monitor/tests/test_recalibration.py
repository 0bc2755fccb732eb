"""`recalibrate` on recorded answers of two real models."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_monitor import CFCMonitor, Label, recalibrate

from integrations.monitor.tests.watching import (
    WEAKER,
    Served,
    list_held_out,
    make_weaker_chain,
    truths,
    watch_results,
    write_swapped_records,
)
from langchain_cfc import CalibrationArtifact, PromptRecord, calibrate
from langchain_cfc.certificates import certify
from langchain_cfc.demo import demo_chain, load_recording
from langchain_cfc.errors import InputError, UnattainableTargetError
from langchain_cfc.evaluation import evaluate
from langchain_cfc.records import read_records
from tests.cli.running import run
from tests.lengths import mostly_long, repetitions
from tests.recordings import list_facts

ALPHA = "0.3"
FEATURES = "mean_score + top_share + group(topic)"

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


@pytest.fixture(scope="module")
def old() -> CalibrationArtifact:
    made = calibrate(load_recording(), alpha=ALPHA, features=FEATURES, test_fraction=0.4)
    return certify(made, load_recording())


def rename_as_served(record: PromptRecord) -> PromptRecord:
    """Give a record another id than it was recorded under, since it is asked again."""
    return record.model_copy(update={"id": f"served-{record.id}"})


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory, old: CalibrationArtifact) -> Served:
    """What a weaker model answers under the name of the calibrated one, to prompts in random order."""
    chain = make_weaker_chain(old, write_swapped_records(tmp_path_factory.mktemp("weaker")))
    records = list(read_records(WEAKER))
    order = np.random.default_rng(0).permutation(len(records))
    asked = [rename_as_served(records[place]) for place in order[: repetitions(len(order), share=0.4)]]
    return Served(asked, [chain.invoke(one.input) for one in asked])


def test_recalibrate_keeps_a_promise_that_the_old_artifact_breaks(
    old: CalibrationArtifact, weak: Served, tmp_path: Path
) -> None:
    asked, results = weak
    many = round(0.6 * len(asked))
    monitor = watch_results(old, tmp_path / "monitor.db", asked[:many], results[:many])
    found = recalibrate(monitor, min_kept=0.5, allow_unattainable=True)
    assert found.certifies
    assert found.results == many
    assert found.certified[ALPHA] >= 0.5
    assert [one.artifact_digest for one in found.compared] == [old.digest, found.artifact.digest]
    assert {one.n_test for one in found.compared} == {found.artifact.calibration.held_out_size}
    # Prompts that come later took no part in it. What is certified holds of each alike: the share kept is
    # below the bound by five standard deviations at most, but for one time in three million.
    for one, result in zip(asked[many:], results[many:], strict=True):
        monitor.record(result, one.id)
    monitor.label(*(Label(one.id, truths(one)) for one in asked[many:]))
    first = min(it.at for it in monitor.read_traffic().results if it.id == asked[many].id)
    later = monitor.read_traffic(first).to_batch()
    monitor.close()
    assert len(later) == len(asked) - many
    served, new = (evaluate(one, later).methods["conditional"] for one in (old, found.artifact))
    assert served.abstention_rate == np.mean([one.abstained for one in results[many:]])
    deviation = np.sqrt(0.25 / len(later))
    assert new.kept_promise > found.certified[ALPHA] - 5 * deviation
    # The control: what was certified of the old model is not kept by the new one.
    bound = old.certificates[0].shares[0].kept_at_least
    assert served.kept_promise < bound - 5 * deviation


@mostly_long("is_stated", [True, False], quick=1)
def test_recalibrate_uses_a_fair_sample_of_labels(
    is_stated: bool, old: CalibrationArtifact, weak: Served, tmp_path: Path
) -> None:
    """Hard prompts are labelled four times as often, which biases the certificate unless it is stated."""
    asked, results = weak
    rng = np.random.default_rng(4)
    with CFCMonitor(old, tmp_path / "monitor.db", least_probability=0.25 if is_stated else 1.0) as monitor:
        labels = []
        for one, result in zip(asked, results, strict=True):
            monitor.record(result, one.id)
            # By what it looks like, and not by what is correct.
            hard = result.features["mean_score"] > 0.6
            probability = 1.0 if hard else 0.25
            if rng.random() < probability:
                labels.append(Label(one.id, truths(one), probability if is_stated else 1.0))
        monitor.label(*labels)
        everyone = monitor.read_traffic().select_labelled()
        traffic = everyone.select_sampled(monitor.least_probability)
        assert len(everyone) == len(labels)
        found = recalibrate(monitor, min_kept=0.0, allow_unattainable=True)
    hard_ones = np.mean([one.features["mean_score"] > 0.6 for one in results])
    mean = np.mean([one.scores for one in traffic.results], axis=1)
    share = float(np.mean(mean > 0.6))
    deviation = 0.5 / np.sqrt(len(traffic))
    assert found.results == len(labels)
    if is_stated:
        assert abs(share - hard_ones) < 5 * deviation
        assert len(traffic) < len(labels)
    else:
        assert share > hard_ones + 5 * deviation
        assert len(traffic) == len(labels)


@pytest.fixture(scope="module")
def usual(old: CalibrationArtifact) -> Served:
    """What the model that was calibrated answers to prompts that took no part in it, and the others."""
    chain, records = demo_chain(old), list_held_out(old)
    order = np.random.default_rng(1).permutation(len(records))
    records = [records[place] for place in order[: repetitions(len(order), share=0.45)]]
    return Served([rename_as_served(one) for one in records], [chain.invoke(one.input) for one in records])


def test_recalibrate_command_writes_only_certified_artifacts(
    old: CalibrationArtifact, usual: Served, tmp_path: Path
) -> None:
    store, artifact, out = (tmp_path / name for name in ("monitor.db", "old.json", "new.json"))
    old.save(artifact)
    watch_results(old, store, *usual).close()
    command = ("monitor", "recalibrate", artifact, store, "--out", out, "--json")
    refused = run(*command, "--min-kept", "0.9")
    assert refused.code == 1, refused.err
    assert not refused.data["certifies"]
    assert refused.data["written"] is None
    assert "90 % is required" in refused.data["objections"][0]
    assert not out.exists()
    certified = run(*command, "--min-kept", "0.5")
    assert certified.code == 0, certified.err
    new = CalibrationArtifact.load(out)
    assert new.certificates[0].shares[0].kept_at_least == certified.data["certified"][ALPHA] >= 0.5
    assert [one["artifact_digest"] for one in certified.data["compared"]] == [old.digest, new.digest]
    # The same again is the same attempt on these labels, and other settings are a second one.
    assert new.certificates[0].attempt == 1
    assert run(*command, "--min-kept", "0.1", "--features", "1").code == 0
    assert CalibrationArtifact.load(out).certificates[0].attempt == 2
    shown = run(*command[:-1], "--min-kept", "0.5").out
    for said in ("old.json, ", "the new artifact, ", "all questions", "certified; artifact written"):
        assert said in shown
    run("monitor", "recalibrate", artifact, store, "--out", artifact, "--min-kept", "0.5").assert_refused(
        "is the artifact being served"
    )
    for since, said in (("yesterday", "expected a time"), ("0001-01-01T00:00+14:00", "expected seconds")):
        run(*command, "--min-kept", "0.5", "--since", since).assert_refused(said)
    # The file of the one that serves is as it was.
    assert CalibrationArtifact.load(artifact).digest == old.digest


@pytest.fixture(scope="module")
def plain_artifact() -> CalibrationArtifact:
    """Reads no metadata and looks at no answers."""
    return calibrate(load_recording(), alpha=ALPHA, features="mean_score")


def test_recalibrate_refuses_insufficient_labels(
    old: CalibrationArtifact, weak: Served, tmp_path: Path
) -> None:
    asked, results = weak
    with CFCMonitor(old, tmp_path / "monitor.db") as monitor:
        with pytest.raises(InputError, match="min_kept: state the certified rate"):
            recalibrate(monitor)
        with pytest.raises(
            InputError, match=r"holds no result of sha256:.* with a complete label: label all candidates"
        ):
            recalibrate(monitor, min_kept=0.5)
        for one, result in zip(asked[:200], results[:200], strict=True):
            monitor.record(result, one.id)
        labels = [Label(one.id, truths(one)) for one in asked[:199]]
        monitor.label(*labels, Label(asked[199].id, [None, *truths(asked[199])[1:]]))
        with pytest.raises(InputError, match="1 of 200 labels do not say for every candidate"):
            recalibrate(monitor, min_kept=0.5)
        made = recalibrate(monitor, min_kept=0.0, leave_out_incomplete=True, allow_unattainable=True)
        assert made.results == 199
        with pytest.raises(InputError, match="complete label since then"):
            recalibrate(monitor, min_kept=0.5, since=time.time() + 1.0)
        with pytest.raises(UnattainableTargetError, match=r"alpha = 0\.3 is out of reach"):
            recalibrate(monitor, min_kept=0.5, leave_out_incomplete=True)


@mostly_long("straggler", [False, True], quick=1)
def test_recalibrate_objects_to_results_of_a_replaced_model(
    straggler: bool, old: CalibrationArtifact, weak: Served, tmp_path: Path
) -> None:
    asked, results = weak

    def name(place: int) -> str:
        return "new" if place >= 120 and not (straggler and place == 300) else "before"

    named = [one.model_copy(update={"models": (name(place),)}) for place, one in enumerate(results[:400])]
    with watch_results(old, tmp_path / "monitor.db", asked[:400], named) as monitor:
        mixed = recalibrate(monitor, min_kept=0.0, allow_unattainable=True)
        assert not mixed.certifies
        assert any("the model before drew 120 of the first 200" in one for one in mixed.objections)
        first = next(one.at for one in monitor.read_traffic().results if one.models == ("new",))
        made = recalibrate(monitor, min_kept=0.5, since=first, allow_unattainable=True)
    assert made.certifies
    assert made.results == 280
    if not straggler:
        # Who serves it is warned of any other.
        assert made.artifact.provenance is not None
        assert made.artifact.provenance.generator is not None
        assert made.artifact.provenance.generator["model_version"] == "new"


def test_recalibrate_objects_to_an_unnamed_change_among_results(
    old: CalibrationArtifact, usual: Served, weak: Served, tmp_path: Path
) -> None:
    asked, results = weak
    records, answers = usual
    swapped = [one.model_copy(update={"id": f"after-{one.id}"}) for one in asked[:200]]
    with watch_results(
        old, tmp_path / "monitor.db", [*records, *swapped], [*answers, *results[:200]]
    ) as monitor:
        mixed = recalibrate(monitor, min_kept=0.0, allow_unattainable=True)
        first = next(one.at for one in monitor.read_traffic().results if one.id == swapped[0].id)
        after = recalibrate(monitor, min_kept=0.0, since=first, allow_unattainable=True)
    assert any("has changed among these results, since about" in one for one in mixed.objections)
    assert not mixed.certifies
    assert after.certifies


@mostly_long("how", ["labelled", "complete", "any"], quick=1)
def test_recalibrate_objects_to_labels_that_are_no_fair_sample(
    how: str, old: CalibrationArtifact, weak: Served, tmp_path: Path
) -> None:
    """Labels of easy prompts alone would promise too much; random labels are the control."""
    asked, results = weak
    rng = np.random.default_rng(6)
    with CFCMonitor(old, tmp_path / "monitor.db") as monitor:
        labels = []
        for one, result in zip(asked, results, strict=True):
            monitor.record(result, one.id)
            easy = result.features["mean_score"] < 0.6 if how != "any" else rng.random() < 0.5
            if easy:
                labels.append(Label(one.id, truths(one)))
            elif how == "complete":
                labels.append(Label(one.id, [None, *truths(one)[1:]]))
        monitor.label(*labels)
        found = recalibrate(
            monitor, min_kept=0.0, features="mean_score", allow_unattainable=True, leave_out_incomplete=True
        )
    doubts = [one for one in found.objections if "the labels are not a fair sample" in one]
    assert bool(doubts) == (how != "any")
    assert found.certifies == (how == "any")


def test_recalibrate_refuses_results_without_a_known_source(
    old: CalibrationArtifact, plain_artifact: CalibrationArtifact, weak: Served, tmp_path: Path
) -> None:
    asked, results = weak
    unsure = results[0].guarantee.model_copy(update={"binding": "unverified"})
    some = [results[0].model_copy(update={"guarantee": unsure}), *results[1:300]]
    with (
        watch_results(old, tmp_path / "unsure.db", asked[:300], some) as monitor,
        pytest.raises(InputError, match="1 of 300 results come from a generator, verifier or extractor"),
    ):
        recalibrate(monitor, min_kept=0.0)
    said = results[0].guarantee.model_copy(update={"artifact_digest": plain_artifact.digest})
    theirs = [one.model_copy(update={"guarantee": said}) for one in results[:300]]
    # Nothing looked at answers, so what distinguishes them was not checked.
    with watch_results(
        plain_artifact, tmp_path / "plain.db", asked[:300], theirs, metadata=["topic"]
    ) as monitor:
        with pytest.raises(InputError, match="compare answers"):
            recalibrate(monitor, min_kept=0.0, features="distinct_answers")
        # Metadata that the artifact does not read, but the monitor keeps.
        assert {*monitor.read_traffic().to_batch().draws.metadata[0]} == {"topic"}


def test_monitor_refuses_labels_below_least_probability(
    old: CalibrationArtifact, weak: Served, tmp_path: Path
) -> None:
    """If it were ignored, the promise would hold only for labelled prompts."""
    asked, results = weak
    with CFCMonitor(old, tmp_path / "monitor.db", least_probability=0.1) as monitor:
        for one, result in zip(asked[:20], results[:20], strict=True):
            monitor.record(result, one.id)
        monitor.label(*(Label(one.id, truths(one), 0.1) for one in asked[:20]))
    with CFCMonitor(old, tmp_path / "monitor.db") as forgetful:
        for look in (forgetful.read_status, lambda: recalibrate(forgetful, min_kept=0.0)):
            with pytest.raises(InputError, match=r"is below least_probability = 1\.0: state the smallest"):
                look()
    with CFCMonitor(old, tmp_path / "monitor.db", least_probability=0.1) as monitor:
        kept = [
            one for one in monitor.read_status().tests if one.kind == "kept" and one.group == "all prompts"
        ]
    assert [one.outcomes for one in kept] == [20]


@pytest.mark.long
def test_recalibrate_keeps_a_bot_or_refuses_one_that_cannot_be_certified(tmp_path: Path) -> None:
    bot = calibrate(load_recording(), max_wrong_rate=["0.3", "0.4"], features="1")
    records = list(map(rename_as_served, list_facts()[:400]))
    chain = demo_chain(bot, max_wrong_rate="0.3")
    results = [chain.invoke(one.input) for one in records]
    with watch_results(bot, tmp_path / "sound.db", records, results) as monitor:
        made = recalibrate(monitor)
        strict = recalibrate(monitor, min_kept=0.5)
    made_bot = made.artifact.certified_bot
    assert made.certifies
    assert made_bot.rates == ("0.3", "0.4")
    for one in made_bot.certificates:
        assert one.prompts == made.artifact.calibration.size + made.artifact.calibration.fit_size
    assert made.certified == {}
    assert [[it.max_wrong_rate for it in one.answers] for one in made.compared] == [[0.3, 0.4]] * 2
    # Nothing is promised about its sets, so no wish about them is fulfilled.
    assert any("promises nothing about them" in one for one in strict.objections)
    with (
        watch_results(bot, tmp_path / "broken.db", records, results, wrong=0.9) as monitor,
        pytest.raises(UnattainableTargetError, match=r"rate of 0\.4 wrong answers is not certified"),
    ):
        recalibrate(monitor)
