"""LangGraph nodes and edges: answers with a guarantee, routing of abstentions, and a person to ask."""

from __future__ import annotations

from langchain_cfc_langgraph.batch import make_batch_node
from langchain_cfc_langgraph.graph import make_guarded_graph
from langchain_cfc_langgraph.node import clear_decision, make_cfc_node, make_say_node
from langchain_cfc_langgraph.person import ask_person
from langchain_cfc_langgraph.state import CFCAnswer, CFCState, Outcome, read_outcome

__all__ = [
    "CFCAnswer",
    "CFCState",
    "Outcome",
    "ask_person",
    "clear_decision",
    "make_batch_node",
    "make_cfc_node",
    "make_guarded_graph",
    "make_say_node",
    "read_outcome",
]
