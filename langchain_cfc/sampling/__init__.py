"""Draw exactly n candidates for a prompt, with streaming and caching of the models switched off."""

from __future__ import annotations

from langchain_cfc.sampling.candidates import DrawnCandidate
from langchain_cfc.sampling.models import (
    make_silent_call,
    resolve_generator,
    walk_runnables,
    without_streaming_and_cache,
)
from langchain_cfc.sampling.sampler import Sampler, SamplingName
from langchain_cfc.sampling.usage import UsageRecorder

__all__ = [
    "DrawnCandidate",
    "Sampler",
    "SamplingName",
    "UsageRecorder",
    "make_silent_call",
    "resolve_generator",
    "walk_runnables",
    "without_streaming_and_cache",
]
