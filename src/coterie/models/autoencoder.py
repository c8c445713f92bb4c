"""FLT's convolutional autoencoder, whose encoder gives the embeddings that clients are related by."""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

import torch
from torch import nn

from coterie.errors import ConfigError
from coterie.models.convolutional import halving
from coterie.models.requirements import at_least_one, image_shape


class ConvAutoencoder(nn.Module):
    """Two convolutions and a fully connected layer to a code, and the mirrored way back (FLT C.3).

    The code is linear, so that distances between codes (k-means) are not cut by a ReLU. `output="sigmoid"` bounds the
    reconstruction for pixels in [0, 1]; the default `"linear"` also fits standardised pixels.
    """

    def __init__(self, input_shape: tuple[int, ...], code: int = 128, output: str = "linear") -> None:
        super().__init__()
        at_least_one("autoencoder", code=code)
        channels, height, width = image_shape("autoencoder", input_shape, smallest=4)
        if height % 4 or width % 4:
            raise ConfigError(
                f"model 'autoencoder' halves images twice and doubles them back, but {height}x{width} does not divide "
                f"by 4; pad or crop the images"
            )
        if output not in ("linear", "sigmoid"):
            raise ConfigError(f"model 'autoencoder': option output={output!r} must be 'linear' or 'sigmoid'")
        small = (4, height // 4, width // 4)
        features = small[0] * small[1] * small[2]
        self.encoder = nn.Sequential(
            OrderedDict(
                **halving(
                    nn.Conv2d(channels, 16, 3, padding=1),
                    nn.Conv2d(16, 4, 3, padding=1),
                ),
                code=nn.Linear(features, code),
            )
        )
        self.decoder = nn.Sequential(
            OrderedDict(
                expand=nn.Linear(code, features),
                relu1=nn.ReLU(),
                unflatten=nn.Unflatten(1, small),
                deconv1=nn.ConvTranspose2d(4, 16, 2, stride=2),
                relu2=nn.ReLU(),
                deconv2=nn.ConvTranspose2d(16, channels, 2, stride=2),
                output=nn.Sigmoid() if output == "sigmoid" else nn.Identity(),
            )
        )

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """The embedding of each image: x (n, channels, height, width) -> (n, code)."""
        return cast(torch.Tensor, self.encoder(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The reconstruction of each image, of the shape of x."""
        return cast(torch.Tensor, self.decoder(self.encode(x)))


def autoencoder(input_shape: tuple[int, ...], classes: int, code: int = 128, output: str = "linear") -> ConvAutoencoder:
    """FLT's autoencoder for one image shape; it learns without labels, so `classes` changes nothing."""
    return ConvAutoencoder(input_shape, code=code, output=output)
