"""README.md: its blocks are run as printed, in order, as one program on a Ray of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from langchain_cfc import PromptRecord
from langchain_cfc.records import read_records
from tests.recordings import list_facts
from tests.serving.openai_server import Script, serving

PAGE = Path(__file__).parents[1] / "README.md"
SIZE, N = 48, 10


def program() -> str:
    """The page's blocks, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    return "\n".join(blocks)


def list_judged(record: PromptRecord) -> list[tuple[str, float, bool]]:
    """Return a record's candidates without their order, which depends on timing."""
    return sorted((str(one.text), one.score, one.correct) for one in record.candidates)


@pytest.mark.long
def test_readme_code_gives_the_stated_records(tmp_path: Path) -> None:
    facts = list_facts()[:SIZE]
    (tmp_path / "page.py").write_text(program(), encoding="utf-8")
    script = Script.of(facts)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with serving(script, own_process=True) as url:
        environment = {
            **os.environ,
            "PATH": path,
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "none",
            "NO_PROXY": "127.0.0.1",
            "RAY_LOG_TO_DRIVER": "0",
            # Not the cluster that other tests have started and take nodes from.
            "RAY_ADDRESS": "local",
        }
        done = subprocess.run(
            [sys.executable, "page.py"],
            cwd=tmp_path,
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert f"{SIZE} questions labelled, 0 failed" in done.stdout
    found = {}
    for name in ("records", "hosted"):
        records = read_records(tmp_path / f"{name}.jsonl")
        assert len({record.id for record in records}) == SIZE
        assert records.provenance is not None
        assert records.provenance.n == N
        generators = records.provenance.generator or {}
        found[name] = {record.id: list_judged(record) for record in records}
    expected = {fact.id: list_judged(fact) for fact in facts}
    assert found["records"] == expected
    # The endpoint was asked for each candidate once, and states log-probabilities to six decimals.
    assert len(script.requests) == SIZE * N
    assert generators["model"] == "gpt-4o-mini"
    for name, candidates in found["hosted"].items():
        assert [text for text, *_ in candidates] == [text for text, *_ in expected[name]]
        scores = [[score for _, score, _ in one] for one in (candidates, expected[name])]
        assert scores[0] == pytest.approx(scores[1], abs=1e-6)
