"""Guard the final answers of LangChain agents: `create_agent(..., middleware=[GuardedAnswer(chain)])`."""

from __future__ import annotations

from langchain_cfc_agents.guarding import GuardedAnswer
from langchain_cfc_agents.prompts import make_prompt_data
from langchain_cfc_agents.recording import RecordPrompt, aanswer_prompts, answer_prompts

__all__ = ["GuardedAnswer", "RecordPrompt", "aanswer_prompts", "answer_prompts", "make_prompt_data"]
