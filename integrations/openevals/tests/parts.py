"""A judge on a real socket, and what verifiers and labelers are asked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from langchain_openai import ChatOpenAI

from integrations.tests.planted import make_model
from langchain_cfc.labelers import LabelerInput
from tests.factories import labeler_input
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving


def labelled_input(prompt: Any, reference: Any, *texts: str) -> LabelerInput:
    return labeler_input(reference, *texts, prompt=prompt)


def reply(**fields: Any) -> list[Answer]:
    """Return a script with one answer of a judge to every request."""
    return [Answer(json.dumps(fields))]


def make_judgements(prompt: str, scores: Mapping[str, Any], **texts: Any) -> dict[str, list[Answer]]:
    """Return the answers of a judge to each candidate in its prompt."""
    return {
        prompt.format(outputs=text, **texts): reply(reasoning="so it is", score=score)
        for text, score in scores.items()
    }


@contextmanager
def hosted(script: Script) -> Iterator[str]:
    """A script served where clients look for a hosted model."""
    with serving(script) as url:
        keys = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
        with mock.patch.dict(os.environ, keys):
            yield url


def client(url: str, **settings: Any) -> ChatOpenAI:
    return make_model(url, **{"model": "judging", "temperature": 0.0, **settings})
