"""Writes the JSON Schema of artifact files from the models that read them: `python docs/schema.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.artifact.files import FORMAT, VERSION

SCHEMA = Path(__file__).with_name("artifact.schema.json")


def build_schema() -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of an artifact file: its envelope, and the content in it.

    It describes the form. What follows from other content, such as a bound from its counts, is checked on
    loading.
    """
    content = CalibrationArtifact.model_json_schema()
    definitions = content.pop("$defs")
    properties: dict[str, Any] = {
        "format": {"const": FORMAT},
        "version": {"const": VERSION},
        "digest": {
            "type": "string",
            "pattern": "^sha256:[0-9a-f]{64}$",
            "description": "SHA-256 of the content as JSON with sorted keys, without spaces.",
        },
        "content": {"$ref": "#/$defs/CalibrationArtifact"},
    }
    every: dict[str, Any] = {**definitions, "CalibrationArtifact": content}
    for one in every.values():
        # The first paragraph of a docstring; the rest speaks of Python.
        one["description"] = one["description"].partition("\n\n")[0].replace("\n", " ")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Calibration artifact of langchain-cfc, version {VERSION}",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "$defs": every,
    }


def format_schema() -> str:
    """Format the schema as the file that is committed."""
    return json.dumps(build_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(format_schema())
