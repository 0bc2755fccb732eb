"""`make_provenance`: what the records of a collection say about the components that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_cfc.records import Provenance

# Known only from responses; it may change while the model's name stays the same.
MODEL_VERSION = "model_version"
# The part of an executor's configuration that becomes the provenance of records.
PROVENANCE_FIELDS = ("n", "generator", "verifier", "labeler", "answer", "unit", "splitter", "draws")


def make_provenance(configuration: Mapping[str, Any], models: Sequence[str]) -> Provenance:
    """Return the provenance of records that an executor with this configuration made.

    `models` are the model names that responses reported; they become the generator's `model_version`.
    """
    # Stores of earlier releases do not say whether scores are separate.
    names = (*PROVENANCE_FIELDS, "separate_scores")
    fields: dict[str, Any] = {name: configuration.get(name) for name in names}
    if models:
        version = models[0] if len(models) == 1 else list(models)
        fields["generator"] = {**(fields["generator"] or {}), MODEL_VERSION: version}
    return Provenance(**fields)
