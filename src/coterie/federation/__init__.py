"""A federation: clients with their data, checked on the way in, from tensors, arrays, folders or data sets."""

from coterie.federation.base import Federation
from coterie.federation.changing import ChangingFederation
from coterie.federation.client import PARTS, Client, Split, as_target, as_tensor, make_client, part_bounds
from coterie.federation.validation import hold_out, on_validation

__all__ = [
    "PARTS",
    "ChangingFederation",
    "Client",
    "Federation",
    "Split",
    "as_target",
    "as_tensor",
    "hold_out",
    "make_client",
    "on_validation",
    "part_bounds",
]
