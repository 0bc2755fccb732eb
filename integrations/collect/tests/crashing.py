"""A collection in a process of its own, which tests kill.

It is called as `python -m integrations.collect.tests.crashing STORE LOG`.

Every call of the generator is noted in a file before it is answered, so that what was paid for is known
whatever becomes of the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from langchain_cfc_collect import CallPolicy, collect
from langchain_cfc_collect.executor import Components

from integrations.collect.tests.sharing import make_numbered_examples, make_silent_options
from langchain_cfc.records import Example

PROMPTS, N, CONCURRENCY = 120, 3, 4
# Prompts under way: those that call, and eight that may wait for the disk meanwhile.
AT_ONCE = CallPolicy(CONCURRENCY).prompts_at_once
_SECONDS = 0.02
OPTIONS = make_silent_options(call_policy=CallPolicy(CONCURRENCY))


def examples(size: int = PROMPTS) -> list[Example]:
    """Prompts 0, 1, ... with the answer to each."""
    return make_numbered_examples(size, "answer {}")


def make_parts_noting_calls(log: Path, seconds: float = _SECONDS) -> Components:
    """Candidates of which the first is right; the calls are noted in a file."""

    async def generator(prompt: str) -> str:
        with log.open("a") as file:
            file.write(f"{prompt}\n")
        await asyncio.sleep(seconds)
        return prompt.replace("question", "answer")

    def labeler(_: Any, reference: Any, candidates: list[Any]) -> list[bool]:
        return [slot == 0 and one.text == reference for slot, one in enumerate(candidates)]

    return Components(generator, lambda _, drawn: [(slot + 1) / 8 for slot in range(len(drawn))], labeler, N)


def count_calls(log: Path) -> Counter[str]:
    """Count the calls for each prompt; the last line of the log may be incomplete."""
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


if __name__ == "__main__":
    store, log = sys.argv[1:]
    collect(examples(), make_parts_noting_calls(Path(log)), store, OPTIONS)
    os.write(1, b"done\n")
