"""Collect through providers' batches: half the price, within 24 hours."""

from __future__ import annotations

from langchain_cfc.collect.batches.batcher import Batcher
from langchain_cfc.collect.batches.models import find_models

__all__ = ["Batcher", "find_models"]
