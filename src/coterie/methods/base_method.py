"""The method underneath another one, FedAvg or a relative of it, and the layers that the other may have for itself."""

from __future__ import annotations

import re

from coterie.errors import ConfigError
from coterie.methods.base import make_method
from coterie.methods.fedavg import FedAvg
from coterie.parameters import Layout

BASES = "fedavg, fedprox, fedbabu, fedper"


def base_method(base: str) -> FedAvg:
    """The method that is written as `fedprox:mu=0.01`, or with several options as `(fedprox:mu=0.01,…)`."""
    if "," in re.sub(r"\(.*\)", "", base):
        raise ConfigError(f"base={base!r}: several options need brackets around them, base=({base})")
    bracketed = base.startswith("(") and base.endswith(")")
    made = make_method(base[1:-1] if bracketed else base)
    if not isinstance(made, FedAvg):
        raise ConfigError(f"option base={base!r}: expected one of {BASES}")
    return made


def layers_above(base: str, specific: str | int | tuple[str, ...], layout: Layout) -> tuple[str, ...]:
    """The layers that `specific` names, or the last so many, of those that the base's clients train together."""
    common = base_method(base).rule().common_layers(layout)
    if isinstance(specific, int) or specific == "last":
        depth = specific if isinstance(specific, int) else 1
        if depth > len(common):
            raise ConfigError(f"specific={depth}: {base} trains {len(common)} layers of this model together")
        return common[-depth:]
    names = (specific,) if isinstance(specific, str) else specific
    ours = tuple(common[-1] if name == "last" else name for name in names)
    open_to_all = layout.select(common)
    for name in ours:
        if any(not _inside(span, open_to_all) for span in layout.select(name)):
            raise ConfigError(f"specific={name!r}: {base} freezes it or keeps it private, choose another layer")
    return ours


def _inside(span: slice, spans: tuple[slice, ...]) -> bool:
    return any(other.start <= span.start and span.stop <= other.stop for other in spans)
