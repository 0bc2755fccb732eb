"""What the soak serves: bots whose upstream fails, and a count of what the process holds."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable

from integrations.server.tests import bots
from integrations.tests.planted import make_model
from langchain_cfc.verifiers import SequenceProbability


def models() -> dict[str, Runnable[Any, Any]]:
    """Bots by name; at SIGUSR1 the process writes down what it holds."""
    signal.signal(signal.SIGUSR1, _weigh)
    without_logprobs = make_model(os.environ["SOAK_WITHOUT_LOGPROBS"], logprobs=True)
    chosen = bots.models()
    return {
        **{name: chosen[name] for name in ("bot", "careful/bot", "helped", "broken")},
        "together": bots.chain(sampling="single_request"),
        "unsure": bots.chain(generator=without_logprobs, verifier=_confidence),
    }


def _confidence(prompt: Any, candidates: Sequence[Any]) -> list[float]:
    """By the log-probabilities of the draws, under the name that the artifact knows."""
    return SequenceProbability().invoke({"prompt": prompt, "candidates": list(candidates)})


def _weigh(*_: Any) -> None:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    held = {
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "blocks": sys.getallocatedblocks(),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - a count, not paths
    }
    with Path(os.environ["SOAK_WEIGHTS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(held) + "\n")
