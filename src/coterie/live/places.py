"""Who is in which cluster while a run goes on, from the checkpoint's header: no tensor is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open


def clusters_in_checkpoint(path: Path) -> dict[str, int]:
    """Each client's cluster as of the last checkpoint; empty where there is none, or the method keeps no such list.

    The file is opened for reading only, and a run replaces it in one step, so neither can disturb the other.
    """
    try:
        with safe_open(path, framework="np") as file:
            packed = json.loads((file.metadata() or {})["coterie"])
        return _clusters(_unpacked(packed)["state"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError):
        return {}  # no checkpoint yet, or one that this version cannot read: the page simply shows no clients


def _clusters(state: dict[str, Any]) -> dict[str, int]:
    if "tree" in state:  # CFL
        leaves = [node for node in state["tree"]["nodes"] if not node["children"]]
        return {client: int(leaf["id"]) for leaf in leaves for client in leaf["members"]}
    if "attempts" in state:  # IFCA
        best = min(state["attempts"], key=lambda attempt: attempt["loss"])
        return {str(client): int(choice) for client, choice in best["choices"].items()}
    found = state.get("cluster") or state.get("cluster_of") or {}  # FedCUAU, FedSEM
    return {str(client): int(cluster) for client, cluster in found.items()}


def _unpacked(packed: Any) -> Any:
    """The nested value of a snapshot's description: its classes as dicts, its tensors as None."""
    if not isinstance(packed, dict):
        return packed
    if "tensor" in packed:
        return None
    for kind in ("list", "tuple"):
        if kind in packed:
            return [_unpacked(item) for item in packed[kind]]
    if "dict" in packed:
        return {_unpacked(key): _unpacked(value) for key, value in packed["dict"]}
    return {name: _unpacked(value) for name, value in packed["fields"].items()}
