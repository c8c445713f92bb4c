"""FedProx (Li et al. 2020): FedAvg whose clients are held near the model they were sent."""

from __future__ import annotations

from pydantic import NonNegativeFloat

from coterie.methods.base import method
from coterie.methods.fedavg import FedAvg, LocalRule


@method("fedprox")
class FedProx(FedAvg):
    """FedAvg with a proximal term μ/2 ‖θ − θ_start‖² in every client's loss."""

    mu: NonNegativeFloat = 0.001
    """Strength of the proximal term; 0 is FedAvg."""

    def rule(self) -> LocalRule:
        return LocalRule(proximal=self.mu)
