from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from langchain_cfc import calibrate, evaluate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.decision import decide
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import InputError
from langchain_cfc.records import Candidate, PromptRecord, Provenance, tabulate
from tests.artifact.files import make_records, seal_content
from tests.lengths import mostly_long

FEATURES = [
    "1",
    "group(topic)",
    "mean_score^3",
    "hat(mean_score, 4) + group(topic) + entropy^2 + bins(meta(year), 3) + hard(max_score, top_share, 0.7)",
]

# Groups of a few prompts cannot certify the smallest level.
pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


@mostly_long("features", FEATURES, quick=2)
def test_loaded_artifact_decides_to_the_bit_like_the_saved_one(features: str, tmp_path: Path) -> None:
    artifact = calibrate(
        make_records(1, 120),
        alpha=["0.1", "0.25", "0.5"],
        features=features,
        set_rule="unique(all)",
        provenance=Provenance(n=4, generator={"id": "g", "temperature": 0.7}),
        fit_fraction=0.3,
        allow_unattainable=True,
    )
    draws = tabulate(make_records(2, 80)).draws
    # Used before it is saved, so that whatever it computes late is there on one side only.
    before = {level: decide(artifact, draws, level) for level in artifact.alphas}
    artifact.save(tmp_path / "artifact.json")
    loaded = CalibrationArtifact.load(tmp_path / "artifact.json")
    assert loaded == artifact
    assert loaded.digest == artifact.digest
    loaded.save(str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "artifact.json").read_bytes()
    for level, saved in before.items():
        again = decide(loaded, draws, level)
        assert again.thresholds.tobytes() == saved.thresholds.tobytes()
        assert again.features.tobytes() == saved.features.tobytes()
        assert (again.accepted == saved.accepted).all()
        for marginal in (False, True):
            one = artifact.solve(saved.features, level, marginal=marginal)
            other = loaded.solve(saved.features, level, marginal=marginal)
            assert other.values.tobytes() == one.values.tobytes()
            assert other.errors.tobytes() == one.errors.tobytes()
    # Not all prompts have one threshold, except where the map says so.
    assert all((len(np.unique(one.thresholds)) == 1) == (features == "1") for one in before.values())


def test_saved_file_is_canonical_json_with_its_digest(
    artifact: CalibrationArtifact, content: dict[str, Any], tmp_path: Path
) -> None:
    artifact.save(tmp_path / "original.json")
    # The format, written a second time from its description, gives the very bytes.
    assert (tmp_path / "original.json").read_bytes() == seal_content(content)
    assert json.loads(seal_content(content))["digest"] == artifact.digest


def test_digest_follows_the_content(artifact: CalibrationArtifact) -> None:
    assert artifact.model_copy(update={"created_at": "2000-01-01T00:00:00+00:00"}).digest != artifact.digest
    # A copy keeps nothing that was computed late from other content.
    assert artifact.model_copy().digest == artifact.digest
    assert artifact.model_copy(update={"set_rule": "rank"}).parsed_set_rule.text == "rank"


def test_saved_file_contains_no_infinite_thresholds(tmp_path: Path) -> None:
    # Three prompts cannot certify anything at alpha = 0.05, under either rule.
    artifact = calibrate(make_records(3, 3), alpha="0.05", features="1", allow_unattainable=True)
    draws = tabulate(make_records(4, 5)).draws
    assert np.isinf(decide(artifact, draws).thresholds).all()
    assert np.isinf(decide(artifact, draws, marginal=True).thresholds).all()
    artifact.save(tmp_path / "artifact.json")

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(constant)

    json.loads((tmp_path / "artifact.json").read_bytes(), parse_constant=refuse)
    assert all(np.isfinite(array.unpack()).all() for array in artifact.arrays.values())
    assert np.isinf(decide(CalibrationArtifact.load(tmp_path / "artifact.json"), draws).thresholds).all()


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_save_keeps_the_old_file_if_writing_fails(
    step: str, artifact: CalibrationArtifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "artifact.json"
    artifact.save(path)
    other = calibrate(make_records(6, 40), alpha="0.2", features="1")

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(step, fail)
        with pytest.raises(InputError, match="disk full"):
            other.save(path)
    assert CalibrationArtifact.load(path) == artifact
    assert [file.name for file in tmp_path.iterdir()] == ["artifact.json"]
    other.save(path)
    assert CalibrationArtifact.load(path) == other


def test_save_names_a_missing_folder(artifact: CalibrationArtifact, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        artifact.save(tmp_path / "nowhere" / "artifact.json")


def test_artifact_is_frozen(artifact: CalibrationArtifact) -> None:
    with pytest.raises(ValueError, match="frozen"):
        artifact.n = 3


def test_artifact_repr_is_one_short_line(artifact: CalibrationArtifact) -> None:
    assert "\n" not in repr(artifact)
    assert len(repr(artifact)) < 120


def test_texts_of_a_bot_state_its_rates_and_nothing_of_sets() -> None:
    records = load_recording()
    bot = calibrate(records, max_wrong_rate=[0.1, 0.2], test_fraction=0.3)
    shown = f"{bot!r} {bot} {evaluate(bot, records)} {bot.make_guarantee(max_wrong_rate='0.2').not_promised}"
    assert all(rate in shown for rate in ("max_wrong_rate=0.1", "max_wrong_rate=0.2", "at most 20 %"))
    assert not re.search(r"alpha|\bsets\b|hat\(|conditional|flagged|coverage", shown)
    # The control: the texts of an artifact for sets do.
    sets = calibrate(records, alpha=0.2, test_fraction=0.3, allow_unattainable=True)
    shown = f"{sets!r} {sets} {evaluate(sets, records)} {sets.make_guarantee().not_promised}"
    assert re.search(r"alpha=0.2.*flagged.*sets", shown, re.DOTALL)


def test_saved_file_contains_no_prompt_answer_or_id(tmp_path: Path) -> None:
    records = [
        PromptRecord(
            id=f"secret-id-{number}",
            input=f"secret prompt {number}",
            reference="secret reference",
            cluster=f"secret-cluster-{number}",
            metadata={"topic": "ops" if number % 2 else "law", "owner": "secret owner"},
            candidates=(
                Candidate(text=f"secret answer {number}", score=0.2, correct=True, answer="secret short"),
                Candidate(
                    message={"secret": "message"},
                    score=0.9,
                    correct=False,
                    answer=f"secret answer {'x' * number}",
                ),
            ),
        )
        for number in range(60)
    ]
    calibrate(records, alpha=0.2, features="group(topic) + mean_length", test_fraction=0.2).save(
        tmp_path / "artifact.json"
    )
    text = (tmp_path / "artifact.json").read_text(encoding="ascii")
    assert "secret" not in text
    assert "owner" not in text
    # The search finds what is there: the categories of a group are part of the feature map.
    assert '"ops"' in text
