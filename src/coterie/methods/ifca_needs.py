"""What IFCA needs of clients, by its options."""

from __future__ import annotations

from typing import Any

from coterie.methods.needs import Needs
from coterie.methods.starts import STARTS
from coterie.tasks import HeldOut


def needs_of_choices(method: Any) -> Needs:
    """Sums by choice; single clients' updates where k-means++ makes the first models, or models grow."""
    grows = method.k == "auto"
    return Needs(
        "must" if grows else "may",
        (HeldOut,) if grows else (),
        "hidden" if method.hide_choice else "seen",
        unnoised=_unnoised(method),
        instead="k=auto compares halves of clients' data, give k",
    )


def _unnoised(method: Any) -> str:
    """Why noise on the sums would not cover all; empty where it does."""
    by_clients = STARTS.make(method.init).looks_at_clients
    if method.k == "auto" or method.restarts > 1 or method.resend != "always" or by_clients:
        return "k='auto', restarts, resend and init=k-means++ or redrawn decide by exact losses or choices"
    if method.averaging != "model" or method.clustered != "all":
        return "shared layers and gradients are divided by exact numbers of clients"
    return ""
