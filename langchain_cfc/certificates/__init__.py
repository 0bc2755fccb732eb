"""Certificates: what held-out labelled prompts say about one frozen artifact, with confidence."""

from __future__ import annotations

from langchain_cfc.certificates.coverage import certify, outcomes
from langchain_cfc.certificates.levels import tested_levels
from langchain_cfc.certificates.policies import certified_policy

__all__ = ["certified_policy", "certify", "outcomes", "tested_levels"]
