"""What a named federation is: how it is made, its default sizes, and what it is trained with by default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coterie.data.builders import BuildOptions
from coterie.errors import ConfigError
from coterie.federation import Federation
from coterie.trainers.base import Training


@dataclass(frozen=True)
class Defaults:
    """What is used for a federation when the user says nothing else."""

    model: str = "mlp"
    rounds: int = 50
    training: Training = field(default_factory=lambda: Training(lr=0.1, epochs=3, batch_size=32))


@dataclass(frozen=True)
class Scenario:
    """A federation by name; `clients`, `samples` (training samples per client) and `groups` are its default sizes.

    Example:
        >>> import torch
        >>> from coterie import Federation
        >>> from coterie.data import BuildOptions, Scenario
        >>> def noise(options: BuildOptions) -> Federation:
        ...     draw = torch.Generator().manual_seed(options.seed)
        ...     items = [(torch.randn(40, 2, generator=draw), torch.arange(40) % 2) for _ in range(options.clients)]
        ...     return Federation.from_tensors(items, name=options.name)
        >>> Scenario("noise", "labels that nothing explains", noise, clients=5, groups=1).build(seed=1)
        Federation('noise': 5 clients, 32-32 training samples, input 2)
    """

    name: str
    summary: str
    make: Callable[[BuildOptions], Federation]
    clients: int = 20
    samples: int | None = None
    groups: int = 4
    defaults: Defaults = field(default_factory=Defaults)

    def build(
        self,
        *,
        clients: int | None = None,
        samples: int | None = None,
        groups: int | None = None,
        seed: int = 0,
        data_dir: Path | None = None,
    ) -> Federation:
        """Make the federation with the given sizes; equal arguments give equal federations."""
        clients = clients or self.clients
        wanted = groups or min(self.groups, clients)
        if wanted > clients:
            raise ConfigError(f"groups={wanted} with clients={clients}: each group needs at least one client")
        return self.make(BuildOptions(self.name, clients, samples or self.samples, wanted, seed, data_dir))
