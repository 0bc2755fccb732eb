"""The README's blocks as tests, and small models that are made here: no weights are loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "lima", "quito", "it", "is", "the", "city"]


@pytest.fixture(scope="session")
def nli_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of natural language inference with random weights, which knows eleven words."""
    folder = tmp_path_factory.mktemp("nli")
    (folder / "words.txt").write_text("\n".join(WORDS))
    BertTokenizer(str(folder / "words.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
        initializer_range=1.0,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return str(Path(folder))
