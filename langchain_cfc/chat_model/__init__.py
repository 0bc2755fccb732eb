"""The facade: a chain that answers or abstains, wherever a chat model is expected."""

from __future__ import annotations

from langchain_cfc.chat_model.arguments import served_first, served_with
from langchain_cfc.chat_model.model import CFCChatModel

__all__ = ["CFCChatModel", "served_first", "served_with"]
