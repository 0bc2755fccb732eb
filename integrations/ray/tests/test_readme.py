"""README.md: what it shows is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from tests.working import asked, script

from langchain_cfc.collect.store import Store
from tests.serving.openai_server import serving

PAGE = Path(__file__).parents[1] / "README.md"
CONFIG = """
store = "configured.db"
n = 10
source = { path = "questions.csv", input = "question", reference = "answers" }
generator = { model = "openai:gpt-4o-mini", arguments = { logprobs = true } }
verifier = { factory = "langchain_cfc.verifiers:SequenceProbability" }
labeler = { factory = "langchain_cfc.labelers:NormalisedMatch" }
"""


@pytest.mark.slow
def test_what_the_page_shows_does_as_it_says(cluster: Cluster, tmp_path: Path) -> None:
    size = 12
    bot, driver, configured = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [f"question {number},answer {number}" for number in range(size)]
    (tmp_path / "questions.csv").write_text("\n".join(["question,answers", *lines, ""]))
    (tmp_path / "collect.toml").write_text(CONFIG)
    served = script(size)
    with serving(served, own_process=True) as url:
        hosted = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
        # As if all nodes had the settings; workers do not inherit the environment of the driver.
        (tmp_path / "mybot.py").write_text(f"import os\n\nos.environ.update({hosted})\n{bot}")
        (tmp_path / "driver.py").write_text(driver)
        (tmp_path / "configured.py").write_text(configured)
        for name in ("driver.py", "configured.py"):
            subprocess.run(
                [sys.executable, name],
                cwd=tmp_path,
                env={**os.environ, **hosted, "RAY_ADDRESS": cluster.address, "RAY_LOG_TO_DRIVER": "0"},
                check=True,
            )
    for name in ("store.db", "configured.db"):
        with Store(tmp_path / name) as store:
            assert len(list(store.records())) == size
            assert store.configuration["n"] == 10
    assert sum(asked(served).values()) == 2 * size * 10
