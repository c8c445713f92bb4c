"""IFCA (Ghosh, Chung, Yin, Ramchandran 2020): Algorithm 1 with options I and II, and weight sharing (section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from reference.clients import Clients, Round, Schedule, Vector, mates_of


def ifca(
    thetas: Sequence[Vector],
    schedule: Schedule,
    clients: Clients,
    option: str = "II",
    weighting: str = "uniform",
    shared: int = 0,
) -> Iterator[Round]:
    """k models of which each client improves the one with its lowest loss; the numbers up to `shared` are common.

    A model that no client chose stays as it is, but for its shared numbers.
    """
    models = [np.concatenate([thetas[0][:shared], theta[shared:]]) for theta in thetas]
    for t, (present, asked) in enumerate(schedule, 1):
        choice = {i: lowest(i, models, clients) for i in asked}  # line 5
        if option == "I":  # lines 8 and 13, which divides by all participants
            gradients = {i: clients.gradient(i, models[j]) for i, j in choice.items()}
            chosen = [{i: g * (choice[i] == j) for i, g in gradients.items()} for j in range(len(models))]
            after = [m - clients.lr * clients.mean(own, weighting) for m, own in zip(models, chosen, strict=True)]
            common = models[0] - clients.lr * clients.mean(gradients, weighting)
        else:  # lines 10 and 14
            trained = {i: clients.train(i, models[j], t) for i, j in choice.items()}
            chosen = [{i: trained[i] for i in asked if choice[i] == j} for j in range(len(models))]
            after = [clients.mean(own, weighting) if own else m for m, own in zip(models, chosen, strict=True)]
            common = clients.mean(trained, weighting)
        models = [np.concatenate([common[:shared], theta[shared:]]) for theta in after]
        # A client that did not take part belongs to the model that suits it now.
        now = {i: choice[i] if i in choice else lowest(i, models, clients) for i in present}
        clusters = ([i for i in present if now[i] == j] for j in range(len(models)))
        yield Round(mates_of(clusters), {f"model {j}": theta for j, theta in enumerate(models)})


def lowest(client: str, models: Sequence[Vector], clients: Clients) -> int:
    """argmin_j F_i(θ_j)."""
    return int(np.argmin([clients.loss(client, theta) for theta in models]))
