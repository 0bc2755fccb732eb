"""Collections of langchain-cfc on a Ray cluster."""

from __future__ import annotations

from langchain_cfc_ray.bench import RayBench
from langchain_cfc_ray.collecting import acollect_on_ray, collect_on_ray

__all__ = ["RayBench", "acollect_on_ray", "collect_on_ray"]
