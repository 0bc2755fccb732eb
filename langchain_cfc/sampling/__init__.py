"""Drawing exactly n candidates for a prompt, with whatever generates them kept quiet."""

from __future__ import annotations

from langchain_cfc.sampling.candidates import Draw
from langchain_cfc.sampling.models import inside, quiet, resolved
from langchain_cfc.sampling.sampler import Sampler, SamplingName
from langchain_cfc.sampling.usage import Witness

__all__ = ["Draw", "Sampler", "SamplingName", "Witness", "inside", "quiet", "resolved"]
