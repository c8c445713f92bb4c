"""The noise of differential privacy that a configuration asks for; refused where its ε guarantee does not hold."""

from __future__ import annotations

from coterie.engines.base import Engine
from coterie.errors import ConfigError
from coterie.methods import Method
from coterie.methods.needs import Needs, needs_of
from coterie.privacy.user_level import UserPrivacy
from coterie.runs.config import RunConfig


def user_privacy(config: RunConfig, method: Method, engine: Engine) -> UserPrivacy | None:
    """The noise that the configuration asks for; a ConfigError where the ε guarantee does not hold."""
    if not config.dp_noise:
        return None
    why = _no_guarantee(config, method, engine)
    if why is not None:
        raise ConfigError(f"dp_noise={config.dp_noise}: the ε guarantee does not hold: {why}")
    clients = len(engine.clients)
    if config.dp_delta * clients >= 1:
        raise ConfigError(
            f"dp_delta={config.dp_delta}: with {clients} clients it allows to publish all data of one: give well below "
            f"1/{clients}"
        )
    # In secure sums the size of the noise shows how many take part, so that is taken as known.
    rate = 1.0 if engine.capabilities.secure else config.participation
    chosen = (needs_of(method) or Needs()).choices != "none"
    return UserPrivacy(config.dp_noise, config.dp_clip, config.dp_delta, rate, choices=chosen)


def _no_guarantee(config: RunConfig, method: Method, engine: Engine) -> str | None:
    """Why the ε guarantee does not hold, or None."""
    needs, name = needs_of(method), getattr(method, "name", type(method).__name__)
    if needs is None:
        return f"{name} does not declare what it needs of clients; give its class needs = Needs() if sums are enough"
    if (why := needs.beyond_noise()) is not None:
        return f"{name}: {why}"
    if engine.capabilities.secure and needs.choices == "seen":
        return "secure sums by model show who chose which, and those of few stay closed; use hide_choice=true"
    if engine.layout.size != engine.layout.trainable:
        return "the model has buffers (running means), which no length bounds; use one without batch normalisation"
    if getattr(method, "weighting", "uniform") == "samples":
        return "numbers of samples as weights change how much one client counts; use weighting=uniform"
    if config.keep_optimizer:
        return "clients' optimisers keep gradients without noise, and a checkpoint keeps them; leave keep_optimizer off"
    if config.patience is not None:
        return "patience chooses the models by exact metrics; give rounds alone"
    return None
