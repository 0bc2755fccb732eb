"""Planning: before any money is spent, which target is within reach, with how many prompts, at what cost.

`estimates` holds the statistics, `model` the shape of the result, `plan` puts both together, and `advice`
says in sentences what to do about it.
"""

from __future__ import annotations

from langchain_cfc.planning.model import AttainableAt, GroupPlan, Plan
from langchain_cfc.planning.plan import plan_from_assumptions, plan_from_pilot

__all__ = ["AttainableAt", "GroupPlan", "Plan", "plan_from_assumptions", "plan_from_pilot"]
