"""Ranks of a stream among calibration prompts and its own past: uniform as long as both are of one kind."""

from __future__ import annotations

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray


def ranks(counts: IntArray, bins: IntArray, uniforms: FloatArray) -> FloatArray:
    """The randomised rank of one more value among all that were counted.

    The share of smaller ones, and a random part of those that are equal, itself included. As long as
    calibration prompts and stream are exchangeable, and bins were fixed on other prompts, the ranks of one
    value after the other are independent and uniform (Vovk, Nouretdinov and Gammerman 2003).

    Args:
        counts: (..., b) how often each bin was met, by calibration prompts and by what came since.
        bins: (...) the value's bin.
        uniforms: (...) independent uniform random numbers in (0, 1).

    Returns:
        (...) numbers in (0, 1).
    """
    below = (counts * (np.arange(counts.shape[-1]) < bins[..., np.newaxis])).sum(axis=-1)
    equal = np.take_along_axis(counts, bins[..., np.newaxis], axis=-1)[..., 0]
    found: FloatArray = (below + uniforms * (equal + 1)) / (counts.sum(axis=-1) + 1)
    return found


def counted(counts: IntArray, bins: IntArray, seen: BoolArray | None = None) -> IntArray:
    """The counts with one more value of each, or of those that were seen."""
    met = np.arange(counts.shape[-1]) == bins[..., np.newaxis]
    if seen is not None:
        met &= seen[..., np.newaxis]
    more: IntArray = counts + met
    return more
