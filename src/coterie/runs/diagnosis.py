"""Are these clients congruent? Train one model for all, then look at the best split and its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.errors import ConfigError
from coterie.federation import Federation
from coterie.methods.cfl import CFL
from coterie.methods.cfl_state import State
from coterie.methods.splitting import LEAST_ROUNDS, Evidence
from coterie.runs.assemble import Model, assemble
from coterie.runs.config import RunConfig
from coterie.runs.loop import Callback, execute

NEVER = 10**9


@dataclass(frozen=True)
class Diagnosis:
    """What the clients' updates say at the model that was trained for all of them."""

    rounds: int
    clients: int
    accuracy: float | None
    evidence: Evidence | None
    sides: tuple[tuple[str, ...], tuple[str, ...]]
    threshold: float

    @property
    def conflict(self) -> bool:
        """Should they not share one model? The loss has flattened, and the best split is signal."""
        seen = self.evidence
        return seen is not None and seen.is_signal and seen.exponent < self.threshold

    def words(self) -> list[str]:
        """The diagnosis in sentences."""
        if self.evidence is None:
            return ["Nothing to diagnose: there is one client alone, or one of them gave no update."]
        seen = self.evidence
        falling = "still falling" if seen.exponent >= self.threshold else "no longer falling"
        signal = "above" if seen.is_signal else "not above"
        sizes = " and ".join(str(len(side)) for side in self.sides)
        accuracy = "" if self.accuracy is None else f", mean accuracy {self.accuracy:.3f}"
        lines = [
            f"After {self.rounds} rounds of one model for {self.clients} clients{accuracy}:",
            f"  the loss is {falling} (exponent {seen.exponent:.2f}; below {self.threshold:g} it has flattened)",
            f"  the mean update has norm {seen.mean_norm:.3g}, the largest of a client {seen.max_norm:.3g}",
            f"  the best split, {sizes}, has separation {seen.separation:.2f}, {signal} the noise level "
            f"{seen.noise:.2f}",
        ]
        if self.conflict:
            verdict = "Not congruent: no single model fits them. Method cfl would split here."
            lines += [*(f"  side {i + 1}: {', '.join(side)}" for i, side in enumerate(self.sides)), verdict]
        elif seen.is_signal:
            lines.append(
                "Different, but one model goes on learning from all of them: congruent as far as can be seen. "
                "Separate models may still serve them better: try cfl:when=gain."
            )
        else:
            lines.append("Congruent: what differs between the clients is no more than noise. One model is right.")
        return lines


def diagnose(
    config: RunConfig,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    callbacks: Sequence[Callback] = (),
) -> Diagnosis:
    """Train one model for the configured rounds, then examine the best split without making it."""
    if config.rounds is not None and config.rounds < LEAST_ROUNDS:
        raise ConfigError(f"rounds={config.rounds}: a diagnosis needs at least {LEAST_ROUNDS} to see the loss's course")
    method = CFL(min_rounds=NEVER, fallback=False)
    run, _ = assemble(config, federation=federation, model=model, method=method)
    try:
        result = execute(run, None, callbacks)
        state: State = result.state
        server, root = run.server, state.tree.nodes[0]
        t = server.rounds + 1
        evidence, sides = None, ((), ())
        if len(root.members) > 1:
            replies = list(server.train(root.members, root.model, t))
            found = method.examine(state, root, state.tracks[0], replies, t, server)
            if found is not None:
                evidence = found[0]
                first, second = (tuple(root.members[i] for i in side) for side in found[2][:2])
                sides = (first, second)
        accuracy = result.summary.accuracy.mean
        return Diagnosis(server.rounds, len(root.members), accuracy, evidence, sides, method.exponent)
    finally:
        run.engine.close()
