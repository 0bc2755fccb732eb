"""Run collections of langchain-cfc on a Ray cluster."""

from __future__ import annotations

from langchain_cfc_ray.collecting import acollect_on_ray, collect_on_ray
from langchain_cfc_ray.executor import RayExecutor

__all__ = ["RayExecutor", "acollect_on_ray", "collect_on_ray"]
