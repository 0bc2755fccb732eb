"""From a message that names an image to one that holds it, and on to the model.

`collect.toml` makes the generator and the extractor from here, so that what is collected is what serves.
"""

from __future__ import annotations

import base64
import io
from typing import Any

from langchain.chat_models import init_chat_model
from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.runnables import Runnable, RunnableLambda
from vision_questions import cut_part, read_address

from langchain_cfc.verifiers import normalise_answer


def with_images(messages: Any) -> list[BaseMessage]:
    """Return messages with an image in the place of every address of a photograph.

    Args:
        messages: Messages in any form that LangChain reads. Images that they already hold stay as they are.

    Returns:
        What the model gets. The images are `data:` URLs, which every OpenAI-compatible server reads.

    Raises:
        ValueError: If an address that begins with `photo:` names no photograph.
    """
    return [
        one
        if isinstance(one.content, str)
        else one.model_copy(update={"content": [_with_image(block) for block in one.content]})
        for one in convert_to_messages(messages)
    ]


def _with_image(block: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(block, str) or block["type"] != "image_url":
        return block
    if not block["image_url"]["url"].startswith("photo:"):
        return block
    file = io.BytesIO()
    cut_part(*read_address(block["image_url"]["url"])).save(file, format="PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def chain(**model: Any) -> Runnable[Any, Any]:
    """The generator: the image is made once per prompt, and n answers are drawn to it.

    `with_images` is a function, which cannot be compared between calibration and serving. The `id` of the
    generator in `collect.toml` vouches for it: change the id with the function.

    Args:
        **model: What `init_chat_model` takes: its name as `model`, and how it is reached.
    """
    answering: Runnable[Any, Any] = init_chat_model(**model)
    return RunnableLambda(with_images) | answering


def short_answer(text: str) -> str:
    """The answer, however it is written: `640 × 480.` is `640x480`.

    Args:
        text: What the model wrote.

    Returns:
        The normalised answer.
    """
    return normalise_answer(text.replace("×", "x")).replace(" x ", "x")
