"""Collect calibration records of langchain-cfc on a Ray cluster, as pipelines of Ray Data."""

from __future__ import annotations

from langchain_cfc_ray.data import (
    collect_prompts,
    encode_draw,
    label_draws,
    make_prompts,
    read_messages,
    repeat_prompts,
)
from langchain_cfc_ray.parts import Merged, Parts

__all__ = [
    "Merged",
    "Parts",
    "collect_prompts",
    "encode_draw",
    "label_draws",
    "make_prompts",
    "read_messages",
    "repeat_prompts",
]
