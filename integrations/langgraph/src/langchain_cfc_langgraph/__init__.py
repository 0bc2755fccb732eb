"""LangGraph nodes and edges: answers with a guarantee, routing of abstentions, and a person to ask."""

from __future__ import annotations

from langchain_cfc_langgraph.graph import guarded_graph
from langchain_cfc_langgraph.node import cfc_node, clear, say
from langchain_cfc_langgraph.person import ask_person
from langchain_cfc_langgraph.state import CFCAnswer, CFCState, Outcome, outcome

__all__ = [
    "CFCAnswer",
    "CFCState",
    "Outcome",
    "ask_person",
    "cfc_node",
    "clear",
    "guarded_graph",
    "outcome",
    "say",
]
