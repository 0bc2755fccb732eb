"""Artifacts of every kind as this release writes them, and what they decide.

`python -m tests.artifact.goldens` writes those of the release in a folder of its own, once: a folder that is
there is never written again, because later releases must read it.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.artifact import tabulate_draws
from langchain_cfc.certificates import certify
from langchain_cfc.decision import decide
from langchain_cfc.errors import CFCWarning
from langchain_cfc.guarantee import PaperPAC, PeopleCertificate
from langchain_cfc.records import Claim, ClaimsRecord, LabelledRecord, Provenance
from langchain_cfc.support import __version__
from tests.artifact.files import make_records

FOLDER = Path(__file__).parent / "golden"
EXPECTED = "expected.json"


def make_claims(seed: int, size: int) -> list[ClaimsRecord]:
    """Answers of three claims, of which those with a large score are unsupported."""
    return [
        ClaimsRecord(
            id=f"{seed}-{row}",
            input=f"{seed}-{row}",
            answer="a. b. c.",
            claims=tuple(
                Claim(text=f"{slot}", start=3 * slot, end=3 * slot + 2, score=score, supported=score < 0.6)
                for slot, score in enumerate((0.1, 0.2 + (row % 7) / 10, 0.3 + (row % 5) / 8))
            ),
        )
        for row in range(size)
    ]


def certify_by_people(artifact: CalibrationArtifact) -> CalibrationArtifact:
    """Add a certificate by people, who agreed with a judge on 90 of 100 prompts."""
    made = PeopleCertificate(
        alpha=artifact.alphas[0],
        delta="0.05",
        prompts=200,
        records_digest="sha256:0",
        artifact_digest=artifact.frozen_digest,
        about="sets",
        set_rule=artifact.set_rule,
        labelled=100,
        agreed=90,
        at_least=0.7,
    )
    return artifact.model_copy(update={"people_certificates": [made]})


SMALL, SOME, MANY = make_records(0, 60), make_records(0, 150), make_records(0, 300)
NEW = make_records(1, 120)
PARTS = Provenance(
    n=4, generator={"id": "g"}, verifier={"id": "v"}, labeler={"id": "l"}, separate_scores=True
)

MAKERS: Mapping[str, Callable[[], CalibrationArtifact]] = {
    "levels": lambda: calibrate(
        SMALL, alpha=["0.3", "0.2"], features="bins(mean_score, 2) + group(topic)", fit_fraction=0.3
    ),
    "confident": lambda: calibrate(MANY, alpha="0.5", features="group(topic)", delta="0.05"),
    "pac": lambda: calibrate(SMALL, alpha="0.3", features="mean_score^2", pac=PaperPAC(ridge=0.01)),
    "adaptive": lambda: calibrate(MANY, alpha="0.2", adaptive_alpha=True),
    "set-rule": lambda: calibrate(SMALL, alpha="0.3", features="1", set_rule="unique(best_prefix)"),
    "draws": lambda: certify(
        calibrate(SMALL, alpha="0.5", features="1", draws="lead(2, at_most=4)", provenance=PARTS), NEW
    ),
    "certified": lambda: certify(calibrate(SMALL, alpha="0.3", features="group(topic)"), NEW),
    "claims": lambda: certify(
        calibrate(make_claims(0, 60), alpha="0.3", unit="claims", at_most=1, features="1"),
        make_claims(1, 60),
    ),
    "bot-beside-sets": lambda: calibrate(
        SOME, alpha=["0.5", "0.3"], max_wrong_rate="0.6", wrong_rate_groups=True, features="1"
    ),
    "bot-of-all": lambda: calibrate(SOME, max_wrong_of_all=["0.3", "0.2"], features="group(topic)"),
    "bot": lambda: calibrate(SOME, max_wrong_rate=["0.5", "0.6"], features="1"),
    "people": lambda: certify_by_people(calibrate(SMALL, alpha="0.3", features="1")),
}


def list_prompts(name: str) -> list[LabelledRecord]:
    """Prompts to decide on with the artifact of this name."""
    return list(make_claims(7, 8) if name == "claims" else make_records(7, 8))


def decide_on_prompts(name: str, artifact: CalibrationArtifact) -> dict[str, Any]:
    """Return thresholds and accepted candidates by level, as JSON that is exact to the bit."""
    table = tabulate_draws(artifact, list_prompts(name))
    found = {}
    for alpha in artifact.alphas:
        decisions = decide(artifact, table.draws, alpha)
        found[alpha] = {
            "thresholds": [float(one).hex() for one in decisions.thresholds],
            "accepted": ["".join("01"[int(one)] for one in row) for row in decisions.accepted],
        }
    return found


def write_artifacts(folder: Path) -> None:
    """Write the artifacts of this release, and what they decide, into a new folder."""
    folder.mkdir(parents=True)
    expected = {}
    for name, make in MAKERS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CFCWarning)
            artifact = make()
        artifact.save(folder / f"{name}.json")
        expected[name] = decide_on_prompts(name, artifact)
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    os.environ["SOURCE_DATE_EPOCH"] = "1767225600"
    write_artifacts(FOLDER / __version__)
    sys.stdout.write(f"written to {FOLDER / __version__}\n")
