"""The collections of `examples/paper`: each is read, and its parts are made, without a model or a network."""

from __future__ import annotations

import json
import math
import shutil
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped] # it has no types
import pytest
from langchain_cfc_collect.config import read_config
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import convert_to_messages
from pyarrow import parquet

from langchain_cfc.labelers.base import LabelerInput
from langchain_cfc.sampling import DrawnCandidate
from tests.cli.running import run
from tests.scripts import load_module

EXAMPLE = Path(__file__).parents[2] / "examples" / "paper"
LLAMA, QWEN = "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen2-VL-7B-Instruct"
IMAGE = "file:///data/flickr8k/1.jpg"
ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "Two boxes of 3 eggs?", "answer": "2 x 3 = <<2*3=6>>6 eggs.\n#### 6"},
    "triviaqa": {
        "question_id": "tc_1",
        "question": "Which city is the capital of Peru?",
        "answer": {"value": "Lima", "aliases": ["Lima", "City of Kings"]},
    },
    "flickr8k": {
        "image": "1.jpg",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": IMAGE}},
                    {"type": "text", "text": "Describe the image in one sentence."},
                ],
            }
        ],
        "captions": ["A child climbs stairs .", "A girl goes into a wooden building ."],
    },
}
PARTS = {
    "gsm8k": (20, LLAMA, "qwen2.5-math-rm-72b", "numeric-match"),
    "triviaqa": (20, LLAMA, "sequence-probability", "normalised-match"),
    "flickr8k": (3, QWEN, "model-judge", "judge-labels"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, with a dataset of one row beside each file, as a user would have it."""
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    for name, row in ROWS.items():
        path = tmp_path / str(read_config(tmp_path / f"{name}.toml").source.path)
        if path.suffix == ".parquet":
            parquet.write_table(pa.Table.from_pylist([row]), path)
        else:
            path.write_text(json.dumps(row) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "paper_parts", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return tmp_path


@pytest.mark.parametrize("name", ROWS)
def test_collect_dry_run_reads_each_paper_dataset_and_makes_its_parts(name: str, folder: Path) -> None:
    ran = run("collect", "--config", folder / f"{name}.toml", "--dry-run", "--json")
    assert ran.code == 0, ran.err
    n, model, verifier, labeler = PARTS[name]
    parts = ran.data["parts"]
    assert (ran.data["prompts"], ran.data["draws"]) == (1, 1)  # all candidates by a single request
    config = read_config(folder / f"{name}.toml")
    assert (config.n, parts["generator"]["model"]) == (n, model)
    assert (config.generator.arguments["temperature"], config.generator.arguments["top_p"]) == (0.7, 0.8)
    for part, expected in (("verifier", verifier), ("labeler", labeler)):
        assert expected in parts[part].values(), parts[part]
    assert not list(folder.glob("*.db"))


def test_read_examples_of_each_paper_dataset(folder: Path) -> None:
    examples = {
        name: next(iter(read_config(folder / f"{name}.toml").source.read_examples())) for name in ROWS
    }
    assert str(examples["gsm8k"].input).startswith("Two boxes of 3 eggs?\n\nReason step by step.")
    assert str(examples["triviaqa"].input).endswith("Question: Which city is the capital of Peru?\nAnswer:")
    assert examples["triviaqa"].reference == ["Lima", "City of Kings"]
    assert examples["flickr8k"].id == "1.jpg"
    [message] = convert_to_messages(list(examples["flickr8k"].input))
    assert IMAGE in json.dumps(message.content)


def label_texts(labeler: Any, reference: Any, texts: list[str]) -> list[bool]:
    candidates = [DrawnCandidate(text=text, message=None) for text in texts]
    given = LabelerInput(prompt="?", reference=reference, candidates=candidates)
    found: list[bool] = labeler.invoke(given)
    return found


def test_labels_of_gsm8k_and_triviaqa_answers(folder: Path) -> None:
    maths, trivia = (
        read_config(folder / f"{name}.toml").create_components() for name in ("gsm8k", "triviaqa")
    )
    assert callable(maths.answer)
    solutions = [maths.answer(text) for text in ("2 x 3 = 6\n#### 6", "#### 7", "I do not know")]
    assert label_texts(maths.labeler, ROWS["gsm8k"]["answer"], solutions) == [True, False, False]
    assert callable(trivia.answer)
    answers = [trivia.answer(text) for text in ("The city of kings.", "Cusco")]
    assert label_texts(trivia.labeler, ["Lima", "City of Kings"], answers) == [True, False]


@pytest.fixture
def own_parts() -> ModuleType:
    return load_module(EXAMPLE / "paper_parts.py", "paper_parts_of_the_example")


def test_caption_labels_asks_the_judge_once_per_caption(own_parts: ModuleType) -> None:
    labeler = own_parts.caption_labels(FakeListChatModel(responses=["Yes.", " no"]))
    captions = ROWS["flickr8k"]["captions"]
    assert sorted(label_texts(labeler, captions, ["A child on stairs.", "A dog."])) == [False, True]


def test_reward_model_scores_by_the_reward_of_the_last_token(own_parts: ModuleType) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            right = asked["messages"][-1] == {"role": "assistant", "content": "6"}
            body = json.dumps({"data": [{"data": [[9.0], [2.0 if right else -900.0]]}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        verifier = own_parts.reward_model(f"http://127.0.0.1:{server.server_port}", "m", scale=2.0)
        candidates = [DrawnCandidate(text="6", message=None), DrawnCandidate(text="7", message=None)]
        scores = verifier.invoke({"prompt": "3 + 3?", "candidates": candidates})
        server.shutdown()
    assert scores == pytest.approx([1 / (1 + math.exp(1.0)), 1.0])
