"""Plugins of this folder's tests and pages."""

from __future__ import annotations

import os

# Before LangGraph is imported: checkpoints may hold nothing but plain data and what LangGraph itself knows.
os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"

pytest_plugins = ["tests.session", "tests.pages", "integrations.langgraph.tests.parts"]
