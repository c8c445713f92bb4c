"""The papers' networks, by name, and a way to bring your own."""

from __future__ import annotations

from coterie.models.autoencoder import ConvAutoencoder
from coterie.models.recurrent import LanguageModel
from coterie.models.registry import ModelSpec, build, initialiser, list_models, reinitialise

__all__ = ["ConvAutoencoder", "LanguageModel", "ModelSpec", "build", "initialiser", "list_models", "reinitialise"]
