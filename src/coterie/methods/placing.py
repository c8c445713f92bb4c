"""How clients find the model with the lowest loss on their data, where several methods do the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.methods.averaging import assignment_of, members_of
from coterie.methods.base import Assignment
from coterie.methods.server import Server
from coterie.tasks import Evaluate


def lowest_loss(models: Mapping[int, Tensor], clients: Sequence[str], server: Server) -> dict[str, int]:
    """The id of the model `(d,)` with the lowest loss on each client's training data; ties go to the first."""
    ids = list(models)
    task = Evaluate(torch.stack(list(models.values())), "train")
    return {
        reply.client: ids[int(np.argmin(np.nan_to_num(reply.values["loss"], nan=np.inf)))]
        for reply in server.ask_all(clients, task)
    }


def lowest_loss_assignment(
    models: Tensor, latest: Sequence[str], choices: Mapping[str, int], server: Server
) -> Assignment:
    """Every client with the model of `(k, d)` that has its lowest training loss; models without a client have no place.

    The `latest` participants keep their choices; the others are asked now, since the models may have changed much since
    they were last seen. Who does not answer keeps its last choice.
    """
    kept = {client: choices[client] for client in latest if client in choices}
    absent = [client for client in server.clients if client not in kept]
    before = {client: choices.get(client, 0) for client in absent}
    asked = lowest_loss(dict(enumerate(models)), absent, server)
    members = members_of(kept | before | asked, server.clients, len(models))
    if server.user_privacy is not None:
        # Which models no client chose is exact, and must not be shown where numbers of clients have noise.
        return Assignment(list(models), members, ids=range(len(models)))
    return assignment_of(models, members)
