"""Make the two small encoders that come with the package, of scikit-learn's embedded 8×8 digits.

The autoencoder learns the digits enlarged to 28×28: at 8×8 its two poolings leave 16 features, too few to tell classes
apart, and most grey images that users have are 28×28.

Run it from anywhere: `python scripts/ship_encoders.py`. On one kind of machine it writes the same files every time.
"""

from __future__ import annotations

from pathlib import Path

import torch

import coterie.encoders as encoders
from coterie.data.sources import load_source
from coterie.encoders.encoder import fitted

CODE, PCA_CODE, EPOCHS, SHAPE = 64, 16, 40, (1, 28, 28)


def main() -> None:
    """Train both on the training part of the digits and write them into the package."""
    torch.set_num_threads(1)
    x = load_source("digits").images()
    folder = Path(encoders.__file__).parent
    conv = encoders.train_encoder(fitted(x, SHAPE), code=CODE, epochs=EPOCHS, seed=0)
    encoders.save_encoder(conv, folder / encoders.SHIPPED["default"], source="digits")
    encoders.save_encoder(encoders.pca_encoder(x, code=PCA_CODE), folder / encoders.SHIPPED["pca"], source="digits")


if __name__ == "__main__":
    main()
