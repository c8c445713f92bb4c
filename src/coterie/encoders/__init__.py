"""Encoders that turn inputs into codes by which clients are compared: the autoencoder of FLT, and PCA in its place."""

from coterie.encoders.encoder import Encoder
from coterie.encoders.files import SHIPPED, load_encoder, save_encoder
from coterie.encoders.training import finetuned, pca_encoder, train_encoder

__all__ = ["SHIPPED", "Encoder", "finetuned", "load_encoder", "pca_encoder", "save_encoder", "train_encoder"]
