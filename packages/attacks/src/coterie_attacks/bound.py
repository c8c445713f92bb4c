"""How many hostile clients no algorithm stands: `python -m coterie_attacks.bound SCENARIO … MODEL [SAMPLES]`.

Honest clients' gradients spread by G² + B²·‖mean‖². If f/n ≥ 1/(2 + B²), no algorithm of f hostile clients of n comes
within any distance of the honest optimum (Allouah et al. 2023, "Robust distributed learning: tight error bounds and
breakdown point under data heterogeneity"). Here B² is that of the first round's updates, with G = 0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.runs import RunConfig, assemble, make_config


def dissimilarity(updates: Tensor) -> float:
    """B² of updates `(n, d)`: their mean squared distance to their mean, over its squared length."""
    mean = updates.mean(0)
    return float((updates - mean).square().sum(1).mean() / mean.square().sum())


def breakdown(squared: float, clients: int) -> float:
    """The number of hostile clients, of so many, from which on no algorithm stands them."""
    return clients / (2 + squared)


def first_updates(config: RunConfig) -> Tensor:
    """The updates `(n, d)` of all clients in the first round."""
    run, _ = assemble(config)
    server = replace(run.server, needs=None)
    requests = server.training_requests(server.clients, server.initial_model(), 1)
    return torch.stack([reply.vector.double() for reply in server.ask(requests) if reply.vector is not None])


def main(scenarios: Sequence[str], model: str, samples: int | None) -> None:
    """Print a row of Markdown for each scenario."""
    for scenario in scenarios:
        config = make_config({"scenario": scenario, "model": model, "clients": 20, "samples": samples, "workers": 1})
        squared = dissimilarity(first_updates(config))
        print(f"| {scenario} | {squared:.1f} | {breakdown(squared, 20):.1f} |")


if __name__ == "__main__":
    given = sys.argv[1:]
    number = int(given.pop()) if given[-1].isdigit() else None
    main(given[:-1], given[-1], number)
