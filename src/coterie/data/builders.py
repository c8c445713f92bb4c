"""How a scenario's federation is put together: deal a source to clients, then make the groups differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.data import partitions, shifts
from coterie.data.pools import Pool, windows
from coterie.data.shifts import Shift, unshifted
from coterie.data.sources import load_source, load_text_source
from coterie.errors import ConfigError, DataError
from coterie.federation import Client, Federation, Split, make_client
from coterie.randomness import derive, numpy_generator

VALIDATION = 0.1
HELD_OUT = (0.7, 0.1, 0.2)
"""Train, validation and test shares of a client's own data, where a source has no test set of its own kind."""
WINDOW = 20
"""Tokens in one sample of next-token prediction."""
NEWS_WORDS = 2000
"""Words that a news federation knows: enough to separate topics, few enough to train on one processor."""


class BuildOptions(NamedTuple):
    """What a scenario is asked for; `samples` None means all that the source has."""

    name: str
    clients: int
    samples: int | None
    groups: int
    seed: int
    data_dir: Path | None


def client_name(number: int, total: int) -> str:
    """A stable id: `client-07`."""
    return f"client-{number:0{len(str(total - 1))}d}"


def groups_of(order: BuildOptions) -> list[int]:
    """The group of each client: 0, 1, …, groups-1, 0, 1, …"""
    return [number % order.groups for number in range(order.clients)]


def without_groups(order: BuildOptions) -> None:
    if order.groups != 1:
        raise ConfigError(f"groups={order.groups}: {order.name} has no hidden groups: leave groups out")


def pooled_client(
    client_id: str,
    pool: Pool,
    parts: tuple[np.ndarray, np.ndarray, np.ndarray],
    group: int,
    shift: Shift = unshifted,
) -> Client:
    """A client with the pool's samples at three index arrays: train and validation of its training part, then test."""
    train, validation = (Split(*shift(pool.images(index), pool.labels(index))) for index in parts[:2])
    test = Split(*shift(pool.images(parts[2], "test"), pool.labels(parts[2], "test")))
    return Client(client_id, train, validation, test, group)


def group_shifts(kind: str, classes: int, groups: int, seed: int) -> list[Shift]:
    """What each group does to its images and labels."""
    if kind == "none":
        return [unshifted] * groups
    if kind == "permuted":
        tables = shifts.group_permutations(classes, groups, derive(seed, "permutations"))
        return [lambda x, y, table=table: (x, shifts.permute_labels(y, table)) for table in tables]  # type: ignore[misc]
    if kind == "swapped":
        pairs = shifts.group_swaps(classes, groups, derive(seed, "swaps"))
        return [lambda x, y, pair=pair: (x, shifts.swap_labels(y, *pair)) for pair in pairs]  # type: ignore[misc]
    if groups > 4 or groups == 3:
        raise ConfigError(f"groups={groups}: rotations by quarter turns make 1, 2 or 4 groups")
    turns = range(0, 4, 4 // groups)
    return [lambda x, y, turn=turn: (shifts.rotate(x, turn), y) for turn in turns]  # type: ignore[misc]


def dealt_clients(
    pool: Pool, rows: tuple[np.ndarray, np.ndarray], members: range, order: BuildOptions, shift: Shift = unshifted
) -> list[Client]:
    """The clients of a group with random shares of some of the pool's training and test samples, which `rows` are.

    `members` are the clients' numbers, of which the first is the group's.
    """
    group = members[0]
    seed = derive(order.seed, "group", group)
    train, validation = _with_validation(len(rows[0]), len(members), order.samples, seed)
    test = partitions.iid(len(rows[1]), len(members), None, derive(seed, "test"))
    return [
        pooled_client(client_name(m, order.clients), pool, (rows[0][a], rows[0][b], rows[1][c]), group, shift)
        for m, a, b, c in zip(members, train, validation, test, strict=True)
    ]


def _with_validation(
    available: int, clients: int, samples: int | None, seed: int
) -> tuple[partitions.Partition, partitions.Partition]:
    """Train and validation indices: a tenth for validation, or what `samples` for training per client leave over."""
    if samples is None:
        whole = partitions.iid(available, clients, None, seed)
        kept = [round(len(part) * VALIDATION) for part in whole]
    else:
        spare = (available - clients * samples) // clients
        extra = min(max(1, round(samples * VALIDATION)), max(spare, 0))
        whole = partitions.iid(available, clients, samples + extra, seed)
        kept = [extra] * clients
    cut = []
    for number, (part, keep) in enumerate(zip(whole, kept, strict=True)):
        mixed = numpy_generator(seed, "validation", number).permutation(part)
        cut.append((mixed[keep:], mixed[:keep]))
    return [a for a, _ in cut], [b for _, b in cut]


def split_client(
    client_id: str, pool: Pool, index: np.ndarray, group: int | None, order: BuildOptions, shift: Shift = unshifted
) -> Client:
    """A client that holds back a part of its own samples for validation and test, so that these are alike."""
    pair = shift(pool.images(index), pool.labels(index))
    return make_client(client_id, pair, HELD_OUT, order.seed, group)


QUARTERS = (1000.0, 1.0, 0.5, 0.1)


def dirichlet_quarters(source: str) -> Callable[[BuildOptions], Federation]:
    """FedCUAU's setting: the clients' label skew grows from quarter to quarter; the quarter is the hidden group.

    As in the paper, each quarter deals its own random share of the source, and a client's test data comes from the
    source's test set in the client's own class proportions (where supply allows): together the clients' test data is
    the whole test set.
    """

    def make(order: BuildOptions) -> Federation:
        pool = load_source(source, order.data_dir)
        if order.groups != len(QUARTERS):
            raise ConfigError(f"groups={order.groups}: quarters are 4 groups")
        quarter = [number * len(QUARTERS) // order.clients for number in range(order.clients)]
        if order.samples is None:
            wanted, kept = None, round(VALIDATION * (len(pool.y) // order.clients))
        else:
            spare = len(pool.y) // order.clients - order.samples
            kept = min(max(1, round(order.samples * VALIDATION)), max(spare, 0))
            wanted = order.samples + kept
        train = _by_quarter(pool.y, quarter, wanted, order.seed)
        test = _by_quarter(pool.y_test, quarter, None, order.seed)
        clients = []
        for number, group in enumerate(quarter):
            mixed = numpy_generator(order.seed, "validation", number).permutation(train[number])
            parts = (mixed[kept:], mixed[:kept], test[number])
            clients.append(pooled_client(client_name(number, order.clients), pool, parts, group))
        return Federation(clients, pool.classes, order.name)

    return make


def _by_quarter(labels: np.ndarray, quarter: Sequence[int], samples: int | None, seed: int) -> partitions.Partition:
    """Indices for each client, dealt within its quarter; the same seed gives train and test the same proportions."""
    sizes = np.bincount(quarter, minlength=len(QUARTERS))
    order = numpy_generator(seed, "quarters", len(labels)).permutation(len(labels))
    cuts = np.cumsum(sizes[:-1]) * len(labels) // len(quarter)
    dealt: partitions.Partition = []
    for q, share in enumerate(np.split(order, cuts)):
        alphas = [QUARTERS[q]] * int(sizes[q])
        own = derive(seed, "quarter", q)
        parts = partitions.dirichlet(labels[share], int(sizes[q]), alphas, own, samples, minimum=5)
        dealt += [share[part] for part in parts]
    return dealt


def even_class_sets(classes: int, groups: int) -> list[list[int]]:
    """The classes cut into `groups` consecutive sets of nearly equal size."""
    return [part.tolist() for part in np.array_split(np.arange(classes), groups)]


def class_sets(source: str, sets_for: Callable[[int], list[list[int]]]) -> Callable[[BuildOptions], Federation]:
    """Groups that hold different classes; `sets_for(groups)` gives each group's classes."""

    def make(order: BuildOptions) -> Federation:
        pool = load_source(source, order.data_dir)
        sets, groups = sets_for(order.groups), groups_of(order)
        if any(not classes for classes in sets):
            raise ConfigError(
                f"groups={order.groups}: {pool.classes} classes do not give each group one: use fewer groups"
            )
        wanted = None if order.samples is None else order.samples + max(1, round(order.samples * VALIDATION))
        train = partitions.by_group_classes(pool.y, sets, groups, wanted, order.seed)
        test = partitions.by_group_classes(pool.y_test, sets, groups, None, derive(order.seed, "test"))
        clients = []
        for number, group in enumerate(groups):
            mixed = numpy_generator(order.seed, "validation", number).permutation(train[number])
            keep = round(len(mixed) * VALIDATION / (1 + VALIDATION))
            parts = (mixed[keep:], mixed[:keep], test[number])
            clients.append(pooled_client(client_name(number, order.clients), pool, parts, group))
        return Federation(clients, pool.classes, order.name)

    return make


def by_writer(source: str) -> Callable[[BuildOptions], Federation]:
    """One client a writer, drawn at random among those with at least 20 samples."""

    def make(order: BuildOptions) -> Federation:
        without_groups(order)
        pool = load_source(source, order.data_dir)
        if pool.writer is None:
            raise DataError(f"the source {source!r} does not say who wrote what")
        parts = partitions.by_key(pool.writer, order.clients, 20, order.seed)
        clients = [
            split_client(client_name(m, order.clients), pool, index, None, order) for m, index in enumerate(parts)
        ]
        return Federation(clients, pool.classes, order.name)

    return make


def by_site(source: str) -> Callable[[BuildOptions], Federation]:
    """Clients with shares of one site's samples each; the site is the hidden group."""

    def make(order: BuildOptions) -> Federation:
        pool = load_source(source, order.data_dir)
        assert pool.writer is not None
        assert pool.writer_test is not None
        if order.groups > (most := int(pool.writer.max()) + 1):
            raise ConfigError(f"groups={order.groups}: {order.name} has {most} sites, each a group: ask for fewer")
        clients: dict[int, Client] = {}
        for site in range(order.groups):
            members = range(site, order.clients, order.groups)
            rows = np.flatnonzero(pool.writer == site), np.flatnonzero(pool.writer_test == site)
            clients |= zip(members, dealt_clients(pool, rows, members, order), strict=True)
        return Federation([clients[number] for number in range(order.clients)], pool.classes, order.name)

    return make


def news_topics(order: BuildOptions) -> Federation:
    """AG-News rows of one topic per client, as windows of words; the topic is the hidden group."""
    pool = load_text_source("ag-news", order.data_dir, NEWS_WORDS)
    if order.groups > len(pool.keys):
        raise ConfigError(f"groups={order.groups}: AG-News has {len(pool.keys)} topics")
    clients: dict[int, Client] = {}
    for topic in range(order.groups):
        members = range(topic, order.clients, order.groups)
        rows = np.flatnonzero(pool.key == topic)
        parts = partitions.iid(len(rows), len(members), None, derive(order.seed, "topic", topic))
        for number, part in zip(members, parts, strict=True):
            x, y = windows([pool.tokens[row] for row in rows[part]], WINDOW)
            if order.samples is not None:
                keep = min(len(x), round(order.samples / HELD_OUT[0]))
                x, y = x[:keep], y[:keep]
            clients[number] = make_client(client_name(number, order.clients), (x, y), HELD_OUT, order.seed, topic)
    return Federation([clients[number] for number in range(order.clients)], len(pool.vocabulary), order.name)


def speakers(order: BuildOptions) -> Federation:
    """One client a speaker of Shakespeare's plays, as windows of characters; the longest parts first."""
    without_groups(order)
    pool = load_text_source("shakespeare", order.data_dir)
    made = []
    for key in range(len(pool.keys)):
        x, y = windows([pool.tokens[row] for row in np.flatnonzero(pool.key == key)], WINDOW)
        if len(x) >= 10:
            made.append((len(x), pool.keys[key], (x, y)))
    made.sort(key=lambda item: (-item[0], item[1]))
    if order.clients > len(made):
        raise DataError(f"clients={order.clients}: {len(made)} speakers have enough lines: ask for fewer")
    clients = [make_client(speaker, pair, HELD_OUT, order.seed) for _, speaker, pair in made[: order.clients]]
    return Federation(clients, len(pool.vocabulary), order.name)


DIMENSION = 100
SEPARATION = 1.0
SIGMA = 0.1


def linear_mixture(order: BuildOptions) -> Federation:
    """IFCA's linear regressions: y = ⟨x, θ*⟩ + σε with θ* ~ R·Bernoulli(½)^d, one θ* a group."""
    generator = numpy_generator(order.seed, "linear")
    truths = SEPARATION * generator.integers(0, 2, (order.groups, DIMENSION))
    clients = []
    for number, group in enumerate(groups_of(order)):
        own = numpy_generator(order.seed, "linear", number)
        parts = {}
        for part, rows in (("train", order.samples or 100), ("validation", 20), ("test", 20)):
            x = own.standard_normal((rows, DIMENSION))
            y = x @ truths[group] + SIGMA * own.standard_normal(rows)
            parts[part] = (x.astype(np.float32), y[:, None].astype(np.float32))
        clients.append(make_client(client_name(number, order.clients), parts, group=group))
    return Federation(clients, name=order.name)


def toy(kind: str) -> Callable[[BuildOptions], Federation]:
    """The CFL paper's two counterexamples in the plane (Figure 1), for a linear classifier."""

    def make(order: BuildOptions) -> Federation:
        if order.groups != 2:
            raise ConfigError(f"groups={order.groups}: {kind} is made of 2 groups")
        clients = []
        for number, group in enumerate(groups_of(order)):
            own = numpy_generator(order.seed, kind, number)
            parts = {}
            for part, rows in (("train", order.samples or 100), ("validation", 20), ("test", 50)):
                y = own.integers(0, 2, rows)
                # XOR: group 0 lives on the left, group 1 on the right, with the classes the other way up.
                # Opposite: both live in the same place.
                up = np.where(y == 1, 1.0, -1.0) * (1 if group == 0 else -1)
                side = 0.0 if kind == "opposite" else (-1.0 if group == 0 else 1.0)
                x = np.stack([np.full(rows, side), up], axis=1) + 0.3 * own.standard_normal((rows, 2))
                parts[part] = (x.astype(np.float32), y)
            clients.append(make_client(client_name(number, order.clients), parts, group=group))
        return Federation(clients, 2, order.name)

    return make
