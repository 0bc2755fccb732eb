"""The demo: the whole method on a real recording, with no key and no network."""

from __future__ import annotations

from langchain_cfc.demo.run import Demo, demo_chain, recording, run_demo

__all__ = ["Demo", "demo_chain", "recording", "run_demo"]
