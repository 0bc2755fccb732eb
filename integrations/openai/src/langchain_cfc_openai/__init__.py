"""Generators and verifiers for langchain-cfc, over any OpenAI-compatible chat completions API.

Use the functions in Python, or by `factory = "langchain_cfc_openai:NAME"` in a `collect.toml`.
"""

from __future__ import annotations

from langchain_cfc_openai.chat import ChatCompletions
from langchain_cfc_openai.failures import EndpointError
from langchain_cfc_openai.parts import Endpoint, make_generator, make_judge

__all__ = ["ChatCompletions", "Endpoint", "EndpointError", "make_generator", "make_judge"]
