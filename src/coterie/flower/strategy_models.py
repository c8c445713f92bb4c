"""A drop-in strategy's models on disk: one file per cluster, and a list of who is served by which."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from coterie.flower.arrays import Template
from coterie.methods import Assignment
from coterie.runs.records import model_file
from coterie.snapshot import write_atomically


def largest_cluster(assignment: Assignment) -> int:
    """The position of the cluster with the most members, the first of several."""
    sizes = [len(members) for members in assignment.members]
    return sizes.index(max(sizes))


def save_clusters(assignment: Assignment, template: Template, folder: Path) -> list[Path]:
    """Write the models as state dicts and `clusters.json`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    served: dict[int, list[int]] = {number: [] for number in assignment.cluster_ids}
    models = dict(zip(assignment.cluster_ids, assignment.models, strict=True))
    for one in assignment.served():
        models[one.model_id] = one.model
        served.setdefault(one.model_id, []).append(int(one.client))
    files = []
    for number, model in models.items():
        files.append(folder / f"{model_file(number)}.pt")
        torch.save(template.record(model).to_torch_state_dict(), files[-1])
    index = {
        "final_model": assignment.cluster_ids[largest_cluster(assignment)],
        "models": [{"id": n, "file": f"{model_file(n)}.pt", "nodes": sorted(served[n])} for n in models],
    }
    files.append(folder / "clusters.json")
    write_atomically(files[-1], (json.dumps(index, indent=2) + "\n").encode())
    return files
