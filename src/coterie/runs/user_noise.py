"""The noise of differential privacy that a configuration asks for; refused where its ε would not be true."""

from __future__ import annotations

from coterie.engines.base import Engine
from coterie.errors import ConfigError
from coterie.methods import IFCA, Method
from coterie.methods.starts import STARTS
from coterie.privacy.user_level import UserPrivacy
from coterie.runs.config import RunConfig

COVERED = ("models/cluster-*.safetensors",)
"""The files of a run folder that ε covers: sums with noise, and what is computed from them alone."""
OUTSIDE = (
    *("config.json", "environment.json", "model.json", "table.json", "history.jsonl", "checkpoint*.safetensors"),
    *("clients.json", "summary.json", "explanation.json"),
)
"""Those with exact numbers about clients' data (metrics, losses, choices, scales, a fingerprint), which are not to be
published where ε is to hold. A run with noise writes no others."""


def user_privacy(config: RunConfig, method: Method, engine: Engine) -> UserPrivacy | None:
    """The noise that the configuration asks for; a ConfigError where the account of it would not be true."""
    if not config.dp_noise:
        return None
    why = _untrue(config, method, engine)
    if why is not None:
        raise ConfigError(f"dp_noise={config.dp_noise}: ε would not be true: {why}")
    clients = len(engine.clients)
    if config.dp_delta * clients >= 1:
        raise ConfigError(
            f"dp_delta={config.dp_delta}: with {clients} clients it allows to publish all data of one: give well below "
            f"1/{clients}"
        )
    # In secure sums the size of the noise tells how many take part, so that is taken as known.
    rate = 1.0 if engine.secure else config.participation
    return UserPrivacy(config.dp_noise, config.dp_clip, config.dp_delta, rate, choices=isinstance(method, IFCA))


def _untrue(config: RunConfig, method: Method, engine: Engine) -> str | None:
    """Why ε would not be true, or None."""
    if not vars(type(method)).get("publishes_sums_only"):  # not inherited: a relative may publish more
        name = getattr(method, "name", type(method).__name__)
        return f"{name} publishes more than sums with noise: single updates, centroids or a model of its own"
    if isinstance(method, IFCA) and (why := _untrue_choices(method, engine)) is not None:
        return why
    if engine.layout.size != engine.layout.trainable:
        return "the model has buffers (running means), which no length bounds; use one without batch normalisation"
    if getattr(method, "weighting", "uniform") != "uniform":
        return "numbers of samples as weights change how much one client counts; use weighting=uniform"
    if config.keep_optimizer:
        return "clients' optimisers keep gradients without noise, and a checkpoint keeps them; leave keep_optimizer off"
    if config.patience is not None:
        return "patience chooses the models by exact metrics; give rounds alone"
    return None


def _untrue_choices(method: IFCA, engine: Engine) -> str | None:
    """The same of clients that choose their model."""
    by_clients = STARTS.make(method.init).looks_at_clients
    if not isinstance(method.k, int) or method.restarts > 1 or method.resend != "always" or by_clients:
        return "k='auto', restarts, resend and init=k-means++ or redrawn decide by exact losses or choices"
    if method.averaging != "model" or method.clustered != "all":
        return "shared layers and gradients are divided by exact numbers of clients"
    if engine.secure and not method.hide_choice:
        return "secure sums by model show who chose which, and those of few stay closed; use hide_choice=true"
    return None
