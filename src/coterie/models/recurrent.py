"""The two-layer LSTM that CFL trains to predict the next word."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from coterie.errors import ConfigError
from coterie.models.requirements import at_least_one


class LanguageModel(nn.Module):
    """Embedding, two LSTM layers and a head over the vocabulary, predicting every next token from those before it."""

    def __init__(self, vocabulary: int, embedding: int = 128, hidden: int = 256) -> None:
        super().__init__()
        at_least_one("lstm", embedding=embedding, hidden=hidden)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens (n, T) int64 -> logits (n, T, vocabulary), those at t reading tokens 0 ... t."""
        states, _ = self.lstm(self.embedding(tokens))
        return cast(torch.Tensor, self.head(states))


def lstm(input_shape: tuple[int, ...], classes: int, embedding: int = 128, hidden: int = 256) -> LanguageModel:
    """The language model for sequences of shape (T,) over a vocabulary of `classes` tokens."""
    if len(input_shape) != 1:
        raise ConfigError(
            f"model 'lstm' takes sequences of tokens of shape (length,), but one input here has shape {input_shape}; "
            f"use 'mlp' or a 'cnn-...' model for images"
        )
    if classes < 2:
        raise ConfigError(f"model 'lstm' needs a vocabulary of at least 2 tokens, but the data has {classes}")
    return LanguageModel(classes, embedding=embedding, hidden=hidden)
