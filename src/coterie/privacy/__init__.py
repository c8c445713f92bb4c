"""What keeps a client's update from telling more than it must."""

from coterie.privacy.masks import Mask, MaskedBench

__all__ = ["Mask", "MaskedBench"]
