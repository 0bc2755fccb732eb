"""A process of its own: it opens a thread's database, asks or replies, and prints the state as JSON.

It is started with a JSON object: the address of the model, the artifact, the database, and what the graph is
given or replied.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from langchain_cfc_langgraph import make_guarded_graph
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from integrations.langgraph.tests.parts import make_chain
from integrations.tests.graphs import thread


def carry_out(order: dict[str, Any]) -> dict[str, Any]:
    killed = order.get("killed", False)
    fields = {"verifier": _ending} if killed else {}
    chain = make_chain(order["artifact"], order["url"], verifier_id="sequence-probability", **fields)
    with SqliteSaver.from_conn_string(order["database"]) as saver:
        graph = make_guarded_graph(chain, checkpointer=saver)
        given: Any = Command(resume=order["reply"]) if "reply" in order else order["given"]
        # By default checkpoints are written in the background: a killed process may have lost its input.
        state = graph.invoke(given, thread(), durability="sync")
        waiting = [one.value for one in state.pop("__interrupt__", ())]
        return {"state": state, "waiting": waiting}


def _ending(prompt: Any, candidates: Any) -> list[float]:
    """Takes the process with it, when all candidates are drawn."""
    del prompt, candidates
    os._exit(9)


if __name__ == "__main__":
    print(json.dumps(carry_out(json.loads(sys.argv[1]))))  # noqa: T201 - read by the test
