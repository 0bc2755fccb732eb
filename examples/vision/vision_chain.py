"""From a question that names an image to a message that holds it, and on to the model.

`collect.toml` makes the generator and the extractor from here, so that what is collected is what serves.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

from langchain.chat_models import init_chat_model
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda
from vision_questions import cutting

from langchain_cfc.verifiers.self_consistency import normalised


def as_messages(asked: Mapping[str, Any]) -> list[BaseMessage]:
    """One human message with the cutting as an image and the question as text.

    Args:
        asked: Photograph, box and question, as `vision_questions` writes them.

    Returns:
        What the model gets. The image is a `data:` URL, which every OpenAI-compatible server reads.
    """
    file = io.BytesIO()
    cutting(asked["photo"], asked["box"]).save(file, format="PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return [
        HumanMessage(
            [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": asked["question"]},
            ]
        )
    ]


def chain(**model: Any) -> Runnable[Any, Any]:
    """The generator: the image is made once per prompt, and n answers are drawn to it.

    Args:
        **model: What `init_chat_model` takes: its name as `model`, and how it is reached.
    """
    answering: Runnable[Any, Any] = init_chat_model(**model)
    return RunnableLambda(as_messages) | answering


def short_answer(text: str) -> str:
    """The answer, however it is written: `640 × 480.` is `640x480`.

    Args:
        text: What the model wrote.

    Returns:
        The normalised answer.
    """
    return normalised(text.replace("×", "x")).replace(" x ", "x")
