"""FLT's federations: disjoint classes (S1), overlapping classes (S2), writers (S3), ten families of all sizes (S4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from coterie.data import partitions
from coterie.data.builders import BuildOptions, by_writer, client_name, groups_of, pooled_client
from coterie.data.pools import Pool
from coterie.data.scenario import Defaults, Scenario
from coterie.data.sources import load_source
from coterie.errors import ConfigError
from coterie.federation import Federation
from coterie.randomness import derive
from coterie.trainers.base import Training

SMALLEST = 20
"""Training samples of the smallest client in S4."""
EXPONENT = 2.0
"""S4's δ: client m of a group holds α + exp(β m^δ) samples. The paper names no value; the authors' code has 2."""


def disjoint_sets(classes: int, groups: int) -> list[list[int]]:
    """S1: consecutive classes, shared out as evenly as they go; with 10 classes and 5 groups two each."""
    if not 1 <= groups <= classes:
        raise ConfigError(f"groups={groups}: {classes} classes do not give each group one: use fewer groups")
    size = -(-classes // groups)
    starts = [round(g * classes / groups) for g in range(groups + 1)]
    if classes % groups and size * (groups - 1) < classes:
        # Full sets first and the rest last, as the paper cuts EMNIST's 47 classes into nine fives and a two.
        starts = [min(g * size, classes) for g in range(groups + 1)]
    return [list(range(a, b)) for a, b in pairwise(starts)]


def overlapping_sets(classes: int, groups: int) -> list[list[int]]:
    """S2: each group's classes of S1 and the first of the next group's, in a ring; neighbours share one."""
    sets = disjoint_sets(classes, groups)
    return [[*own, after[0]] for own, after in zip(sets, sets[1:] + sets[:1], strict=True)] if groups > 1 else sets


def by_classes(source: str, sets_for: Callable[[int, int], list[list[int]]]) -> Callable[[BuildOptions], Federation]:
    """Each group holds its own classes, all clients equally much; as in the paper nothing is held back to validate."""

    def make(order: BuildOptions) -> Federation:
        pool = load_source(source, order.data_dir)
        sets, groups = sets_for(pool.classes, order.groups), groups_of(order)
        train = partitions.by_group_classes(pool.y, sets, groups, order.samples, order.seed)
        return _federation(pool, train, sets, groups, order)

    return make


def by_power_law(source: str, smallest: int = SMALLEST) -> Callable[[BuildOptions], Federation]:
    """S4 (Algorithm 4 of the appendix): disjoint classes per group, and clients of all sizes in it."""

    def make(order: BuildOptions) -> Federation:
        if order.samples is not None:
            raise ConfigError(f"samples={order.samples}: in {order.name!r} a power law decides the sizes")
        pool = load_source(source, order.data_dir)
        sets, groups = disjoint_sets(pool.classes, order.groups), groups_of(order)
        train = partitions.structured_power_law(pool.y, sets, groups, smallest, EXPONENT, order.seed)
        return _federation(pool, train, sets, groups, order)

    return make


def _federation(
    pool: Pool, train: partitions.Partition, sets: Sequence[Sequence[int]], groups: Sequence[int], order: BuildOptions
) -> Federation:
    """Clients with the given training samples, and an equal share of the test samples of their group's classes."""
    test = partitions.by_group_classes(pool.y_test, sets, groups, None, derive(order.seed, "test"))
    clients = [
        pooled_client(client_name(m, order.clients), pool, (train[m], train[m][:0], test[m]), group)
        for m, group in enumerate(groups)
    ]
    return Federation(clients, pool.classes, order.name)


_MNIST = Defaults(rounds=100, training=Training(lr=0.01, epochs=1, batch_size=10))
_CIFAR = Defaults(model="cnn-cifar", rounds=100, training=Training(lr=0.01, epochs=5, batch_size=10))
_DIGITS = Defaults(rounds=50, training=Training(lr=0.05, epochs=1, batch_size=10))


def scenarios() -> Iterator[Scenario]:
    """The named federations of S1 to S4."""
    for ending, title, source, defaults, clients in (
        ("", "MNIST", "mnist", _MNIST, 100),
        ("-fashion", "Fashion-MNIST", "fashion-mnist", _MNIST, 100),
        ("-cifar", "CIFAR-10", "cifar10", _CIFAR, 100),
        ("-digits", "scikit-learn digits (8×8)", "digits", _DIGITS, 20),
    ):
        for number, what, sets in (
            (1, "each group two classes of its own", disjoint_sets),
            (2, "each group three classes, neighbours share one", overlapping_sets),
        ):
            yield Scenario(
                f"flt-s{number}{ending}",
                f"FLT's scenario {number} on {title}: {what}",
                by_classes(source, sets),
                clients=clients,
                groups=5,
                defaults=defaults,
            )
    for name, source, title in (
        ("flt-s3", "mnist-writers", "MNIST by its writers (QMNIST)"),
        ("flt-s3-femnist", "femnist", "LEAF FEMNIST"),
    ):
        yield Scenario(
            name,
            f"FLT's scenario 3 on {title}: natural clients without known groups",
            by_writer(source),
            clients=200,
            groups=1,
            defaults=replace(_MNIST, training=Training(lr=0.01, epochs=5, batch_size=10)),
        )
    for name, source, title, clients, groups, smallest, defaults in (
        ("flt-s4", "mnist+fashion", "MNIST and Fashion-MNIST as 20 classes", 2400, 10, SMALLEST, _MNIST),
        ("flt-s4-emnist", "emnist", "EMNIST balanced", 2400, 10, SMALLEST, _MNIST),
        ("flt-s4-digits", "digits", "scikit-learn digits (8×8)", 40, 5, 10, _DIGITS),
    ):
        epochs = 1 if source == "digits" else 5
        yield Scenario(
            name,
            f"FLT's scenario 4 on {title}: {groups} groups with classes of their own, power-law sizes",
            by_power_law(source, smallest),
            clients=clients,
            groups=groups,
            defaults=replace(defaults, training=replace(defaults.training, epochs=epochs)),
        )
