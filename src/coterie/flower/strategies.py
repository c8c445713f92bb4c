"""Clustered strategies for Flower apps that already exist: change the strategy, leave the ClientApp as it is.

    strategy = CFL(fraction_evaluate=0.5)                      # instead of FedAvg(fraction_evaluate=0.5)
    result = strategy.start(grid, initial_arrays, num_rounds=60, train_config=ConfigRecord({"lr": 0.1}))
    strategy.clusters, strategy.models, strategy.tree, strategy.history

The methods are Coterie's own, on an engine that only trains and evaluates; `coterie.flower.plain` says what differs
from clients that know more. Node ids are what clusters are made of: they survive a restart of a node only if it has
a registered key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from coterie.errors import ConfigError
from coterie.flower.plain import PlainEngine
from coterie.flower.strategy_base import LOG, Clustered
from coterie.methods.cfl import CFL as CFLMethod
from coterie.methods.fedcuau import FedCUAU as FedCUAUMethod
from coterie.methods.splitting import make_rule


class CFL(Clustered):
    """Clustered federated learning: splits nodes whose updates conflict, once one model cannot serve them all.

    Options as of the method `cfl`: `rule`, `weighting`. If all nodes answer checks (`answer_checks` in
    their app) it decides as the method `cfl` does elsewhere, by held-out benefit; they are asked once, when the run
    begins. An app as it is cannot answer: then the rule is "evaluated", by which the data that nodes evaluate on says
    whether parts are better served apart; without offsets that nodes keep, clusters may split by label skew alone,
    until the split is undone. `rule="paper(eps1=…,gamma_max=…)"` asks for the paper's rule instead.
    """

    name = "cfl"
    defaults: ClassVar[Mapping[str, Any]] = {"fallback": False}

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if settings.get("compare", "update") != "update":
            raise ConfigError(f"compare={settings['compare']!r}: an app that only trains sends updates, leave it out")
        if settings.get("fallback"):
            raise ConfigError("fallback=True: an app that only evaluates does not say how sure a loss is, leave it out")
        rule = settings.get("rule", "auto")
        if not self.fraction_evaluate and rule == "auto":
            raise ConfigError(
                "fraction_evaluate=0: CFL decides by the data that nodes evaluate on, let some do so or give a rule"
            )
        if rule != "auto" and getattr(make_rule(rule), "gamma_max", None) == "auto":
            raise ConfigError(
                f"rule={rule!r}: an app that only trains cannot measure its updates' noise, give gamma_max=0.5, say"
            )

    def _meet(self, engine: PlainEngine) -> None:
        assert isinstance(self.method, CFLMethod)
        if self.method.rule != "auto":
            return
        unable = engine.look_for_checks()
        if engine.capabilities.halves:
            LOG.info("All nodes answer checks: clusters split by what halves of their data say")
            return
        reasons = "; ".join(f"node {client}: {reason}" for client, reason in list(unable.items())[:3])
        LOG.warning(
            "%d of %d nodes do not answer CFL's checks (%s): the data that nodes evaluate on decides about splits, "
            "without private offsets. Add to the ClientApp: answer_checks(app, model, data, fit), from coterie.flower",
            len(unable) or len(engine.clients),
            len(engine.clients),
            reasons or "none answers",
        )


class FedSEM(Clustered):
    """Clusters by the distance of nodes' models to cluster centres, improved in every round; options `clusters`, …"""

    name = "fedsem"


class OneShot(Clustered):
    """Nodes train alone for `warmup_rounds`, k-means makes `k` clusters of their models, each then trains by itself."""

    name = "oneshot"


class FedCUAU(Clustered):
    """Clusters by heterogeneity, each learning from the more homogeneous ones only; options `clusters`, `specific`, ….

    A node of cluster i is sent 1 + C − i messages per round. They train all layers, of which those of the cluster are
    kept: exact with `specific` naming all layers, near otherwise. The base is FedAvg, or FedProx for apps that
    follow `proximal-mu` in their config, as Flower's own FedProx asks them to.
    """

    name = "fedcuau"
    defaults: ClassVar[Mapping[str, Any]] = {"measure": "update"}

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        assert isinstance(self.method, FedCUAUMethod)
        if self.method.measure != "update":
            raise ConfigError(
                f"measure={self.method.measure!r} trains on halves of the data, which an app as it is cannot"
            )
        rule = self.method.base_method().rule()
        if rule.frozen or rule.private:
            raise ConfigError(f"base={self.method.base!r} freezes or keeps layers, which an app as it is cannot do")
