"""How newcomers find a cluster after training, where several methods do the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

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
