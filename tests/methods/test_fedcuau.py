"""FedCUAU beside its base, with one-way flow, for every base method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from coterie.clustering import cuau, neutral_cuau
from coterie.data.scenarios import find_scenario
from coterie.engines import LocalEngine
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.methods import Assignment, FedAvg, FedCUAU, Server, make_method
from coterie.methods.fedcuau import State
from coterie.methods.heterogeneity import clusters_in_words, divergences, ranked_clusters
from coterie.parameters import gather, scatter, span_size
from coterie.runs.metrics import check_partition, score_clients
from coterie.runs.personalised import personalised
from coterie.snapshot import load_snapshot, save_snapshot
from coterie.trainers.base import Training
from coterie.trainers.schedules import LearningRateSchedule

BASES = ["fedavg", "fedprox:mu=0.5", "fedbabu", "fedper"]
TRAINING = Training(lr=0.1, epochs=1, batch_size=16)


def network(seed: int) -> nn.Module:
    """A feed-forward network with three layers, so that a body remains below head and specific layers."""
    generator = torch.Generator().manual_seed(seed)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 10))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return layers


def normalised(seed: int) -> nn.Module:
    """A convolutional network with BatchNorm in its shared and in its specific part."""
    generator = torch.Generator().manual_seed(seed)
    layers = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return layers


@pytest.fixture(scope="module")
def federation() -> Federation:
    return find_scenario("digits-dirichlet-quarters").build(clients=10, samples=32, seed=1)


def server_of(
    federation: Federation, architecture: Callable[[int], nn.Module] = network, participation: float = 0.5
) -> Server:
    engine = LocalEngine(federation, architecture)
    return Server(
        engine, LearningRateSchedule(TRAINING, 5, "decay", 0.9), seed=3, rounds=5, participation=participation
    )


def rounds(method: Any, server: Server, count: int = 4) -> Iterator[Any]:
    state = method.start(server)
    yield state
    for t in range(1, count + 1):
        state, _ = method.round(state, t, server)
        yield state


def test_the_clusters_are_described_in_the_first_round_alone(federation: Federation) -> None:
    server, method = server_of(federation), FedCUAU(clusters=3)
    state, described = method.start(server), []
    for t in (1, 2):
        state, info = method.round(state, t, server)
        described.append([event.text for event in info.events if "CUAU" in event.text])
    assert list(map(len, described)) == [1, 0]


@pytest.mark.parametrize("architecture", [network, normalised])
@pytest.mark.parametrize("base", BASES)
def test_shared_and_last_layers_follow_the_base_method_bit_for_bit(
    base: str, architecture: Callable[[int], nn.Module], federation: Federation
) -> None:
    plain, staged = server_of(federation, architecture), server_of(federation, architecture)
    method = FedCUAU(base=base, clusters=3)
    pairs = zip(rounds(make_method(base), plain), rounds(method, staged), strict=True)
    for t, (expected, state) in enumerate(pairs):
        assert torch.equal(state.model, expected.model)
        if t:
            assert not any(torch.equal(row, gather_specific(method, state.model, staged)) for row in state.specific)
    assert len({tuple(row.tolist()) for row in state.specific}) == 2
    # What clients keep to themselves is the base's too.
    own, other = plain.engine.client_states(), staged.engine.client_states()
    assert own.keys() == other.keys()
    assert bool(own) == (base == "fedper")
    assert all(torch.equal(own[c]["private"], other[c]["private"]) for c in own)


def gather_specific(method: FedCUAU, model: Tensor, server: Server) -> Tensor:
    layout = server.engine.layout
    return gather(model, layout.select(method.specific_layers(layout)))


def test_one_cluster_is_the_base_method(federation: Federation) -> None:
    server, method = server_of(federation), FedCUAU(clusters=1)
    for expected, state in zip(rounds(FedAvg(), server), rounds(method, server), strict=True):
        assert torch.equal(state.model, expected.model)
    given = method.assignment(state, server)
    assert list(given.members) == [list(federation.ids)]
    assert torch.equal(given.models[0], expected.model)


def disturbed(federation: Federation, client_id: str) -> Federation:
    """The federation with one client's training labels turned around."""

    def turned(client: Client) -> Client:
        return replace(client, train=Split(client.train.x, (client.train.y + 5) % 10))

    return Federation([turned(c) if c.id == client_id else c for c in federation], federation.classes)


@pytest.mark.parametrize("base", BASES)
def test_knowledge_flows_from_homogeneous_to_heterogeneous_clusters_only(base: str, federation: Federation) -> None:
    method = FedCUAU(base=base, clusters=4)
    server = server_of(federation, participation=1.0)
    start = method.start(server)
    before, _ = method.round(start, 1, server)
    for victim_cluster in range(4):
        victim = next(c for c in federation.ids if start.cluster[c] == victim_cluster)
        after, _ = method.round(start, 1, server_of(disturbed(federation, victim), participation=1.0))
        same = [torch.equal(a, b) for a, b in zip(before.specific, after.specific, strict=True)]
        assert same == [j < victim_cluster for j in range(3)]
        assert not torch.equal(before.model, after.model)


def test_with_all_layers_specific_each_cluster_is_fedavg_over_the_clusters_up_to_it(federation: Federation) -> None:
    server = server_of(federation, normalised, participation=1.0)
    method = FedCUAU(clusters=3, specific=5)
    *_, last = rounds(method, server, 2)
    for j in range(3):
        members = [c for c in federation.ids if last.cluster[c] <= j]
        *_, alone = rounds(FedAvg(), server_of(federation.subset(members), normalised, participation=1.0), 2)
        assert torch.equal(method.assignment(last, server).models[j], alone.model)


def test_a_cluster_that_nobody_trained_stays(federation: Federation) -> None:
    server, method = server_of(federation, participation=0.1), FedCUAU(clusters=10)
    start = method.start(server)
    (sampled,) = server.participants(1)
    after, _ = method.round(start, 1, server)
    moved = [not torch.equal(a, b) for a, b in zip(start.specific, after.specific, strict=True)]
    assert moved == [j >= start.cluster[sampled] for j in range(9)]


def test_the_mean_of_a_cluster_layer_is_weighted_by_samples(federation: Federation) -> None:
    uneven = Federation(
        [replace(c, train=Split(c.train.x[: 10 + 2 * i], c.train.y[: 10 + 2 * i])) for i, c in enumerate(federation)],
        10,
    )
    server, method = server_of(uneven, participation=1.0), FedCUAU(clusters=2)
    start = method.start(server)
    after, _ = method.round(start, 1, server)
    total, weight = torch.zeros(start.specific.shape[1], dtype=torch.float64), 0
    for client in uneven.ids:
        if start.cluster[client] == 0:
            alone = server_of(uneven.subset([client]), participation=1.0)
            one, _ = method.round(start, 1, alone)
            n = server.samples[client]
            total += n * (one.specific[0].double() - start.specific[0])
            weight += n
    torch.testing.assert_close(after.specific[0].double() - start.specific[0], total / weight, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("clusters", [1, 3, 4, 10])
def test_clusters_partition_the_clients_whatever_their_number(clusters: int, federation: Federation) -> None:
    server, method = server_of(federation), FedCUAU(clusters=clusters)
    state = method.start(server)
    given = method.assignment(state, server)
    assert len(given.members) == clusters
    check_partition(given.members, federation.ids)
    sizes = [len(members) for members in given.members]
    assert max(sizes) - min(sizes) <= 1
    tops = [max(state.cuau[c] for c in members) for members in given.members]
    bottoms = [min(state.cuau[c] for c in members) for members in given.members]
    assert all(top <= bottom for top, bottom in zip(tops, bottoms[1:], strict=False))
    assert len(score_clients(given, server.engine)) == 10


def test_clients_with_equal_data_tie_and_are_still_partitioned(federation: Federation) -> None:
    twin = federation.clients[0]
    twins = Federation([replace(twin, id=f"twin-{i}") for i in range(5)], 10)
    server = server_of(twins)
    # Full batches, so that the order of a client's samples makes no difference between twins.
    server.schedule = LearningRateSchedule(replace(TRAINING, batch_size=None), 5)
    method = FedCUAU(clusters=2, measure="update")
    state = method.start(server)
    assert len(set(state.cuau.values())) == 1
    assert [len(m) for m in method.assignment(state, server).members] == [3, 2]


def test_stage_one_sends_a_seed_down_and_one_layer_up(federation: Federation) -> None:
    server = server_of(federation)
    FedCUAU(clusters=2, measure="update").start(server)
    head = 16 * 10 + 10
    assert server.traffic.drain() == (10 * 8, 10 * (4 * head + 8))
    divergences(server)
    assert server.traffic.drain() == (10 * 8, 10 * (4 * 2 * head + 8))
    divergences(server, ("3", "5"), measure="update")
    assert server.traffic.drain() == (10 * 8, 10 * (4 * (head + 24 * 16 + 16) + 8))


def test_stage_two_sends_a_client_only_the_layers_it_trains(federation: Federation) -> None:
    server, method = server_of(federation, participation=1.0), FedCUAU(clusters=2)
    state = method.start(server)
    server.traffic.drain()
    method.round(state, 1, server)
    size, head = server.layout.size, 170
    in_first = sum(k == 0 for k in state.cluster.values())
    assert server.traffic.drain() == (4 * (10 * size + in_first * head), 4 * (10 * size + in_first * head) + 10 * 8)


def test_heterogeneous_clients_have_a_larger_cuau() -> None:
    federation = find_scenario("digits-dirichlet-quarters").build(seed=0)
    values = divergences(server_of(federation))
    quarters = [[values[c.id] for c in federation if c.group == q] for q in (0, 3)]
    assert max(quarters[0]) < sum(quarters[1]) / 5


def test_a_client_whose_first_update_fails_joins_the_last_cluster(federation: Federation) -> None:
    first = federation.clients[0]
    wild = replace(first, train=Split(first.train.x * 1e30, first.train.y))
    server = server_of(Federation([wild, *federation.clients[1:]], 10))
    method = FedCUAU(clusters=3)
    state = method.start(server)
    assert state.cluster[wild.id] == 2
    assert wild.id not in state.cuau
    check_partition(method.assignment(state, server).members, federation.ids)


def test_clients_without_a_value_are_in_the_last_cluster_however_many_they_are() -> None:
    clients = [f"c{i}" for i in range(12)]
    few = {"c2": 0.3, "c5": 0.1, "c7": 0.2}
    found = ranked_clusters(few, clients, 2)
    assert {c for c, cluster in found.items() if cluster == 0} == {"c5", "c7"}
    assert ranked_clusters({"c4": 1.0}, clients, 3) == dict.fromkeys(clients, 2) | {"c4": 0}


def test_cuau_by_halves_is_the_product_of_two_updates_worked_by_hand(federation: Federation) -> None:
    one = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    two = torch.tensor([[2.0, 2.0], [0.0, 0.0], [0.0, -1.0]])
    # Samples 2, 1, 1: the means are (1, 0.25) and (1, 0.75), so (1, −0.25)·(1, 1.25), (−1, −0.25)·(−1, −0.75), …
    whole = torch.zeros(2, dtype=torch.int64)
    products = [0.6875**0.5, 1.1875**0.5, -(0.3125**0.5)]
    assert neutral_cuau(one, two, [2, 1, 1], whole) == pytest.approx(products)
    # Output by output each product has its own root.
    by_output = [1 - 0.3125**0.5, 1 + 0.1875**0.5, 1 - 1.3125**0.5]
    assert neutral_cuau(one, two, [2, 1, 1], torch.tensor([0, 1])) == pytest.approx(by_output)
    moved = neutral_cuau(one + torch.tensor([5.0, 1.0]), two - 3.0, [2, 1, 1], torch.tensor([0, 1]))
    assert moved == pytest.approx(by_output)
    values = divergences(server_of(federation))
    assert sorted(values) == sorted(federation.ids)


def test_cuau_by_halves_does_not_grow_with_noise_and_the_papers_does() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.linspace(0.1, 1.0, 200)[:, None]
    one, two = (noise * torch.randn(200, 30, generator=generator) for _ in range(2))
    samples = (1 / noise.squeeze().square()).tolist()
    output = torch.arange(30) // 3
    assert abs(spearmanr(neutral_cuau(one, two, samples, output), samples).statistic) < 0.15
    assert spearmanr(cuau((one + two) / 2, samples), samples).statistic < -0.9


def test_gradients_output_by_output_follow_the_distance_of_the_labels() -> None:
    """The last bias's gradient is the mean prediction minus the share of each label: CUAU is their distance exactly."""
    generator = torch.Generator().manual_seed(1)
    shares = torch.distributions.Dirichlet(torch.full((5,), 0.3)).sample((40,)).double()
    bias = 0.2 - shares
    samples = torch.randint(10, 100, (40,), generator=generator).tolist()
    total = torch.tensor(samples, dtype=torch.float64) @ shares / sum(samples)
    distances = (shares - total).abs().sum(dim=1)
    assert neutral_cuau(bias, bias, samples, torch.arange(5)) == pytest.approx(distances.numpy())
    assert spearmanr(neutral_cuau(bias, bias, samples, torch.zeros(5, dtype=torch.int64)), distances).statistic < 0.999


def test_cuau_by_halves_ranks_clients_alike_at_any_step_size(federation: Federation) -> None:
    server = server_of(federation)
    small, large = (
        divergences(
            Server(server.engine, LearningRateSchedule(replace(TRAINING, lr=lr), 5, "decay", 0.9), seed=3, rounds=5)
        )
        for lr in (0.001, 1.0)
    )
    assert spearmanr([small[c] for c in federation.ids], [large[c] for c in federation.ids]).statistic > 0.999


def test_specific_layers_by_name_depth_and_default(federation: Federation) -> None:
    layout = server_of(federation).engine.layout
    assert FedCUAU().specific_layers(layout) == ("5",)
    assert FedCUAU(specific=2).specific_layers(layout) == ("3", "5")
    assert FedCUAU(specific=("1", "last")).specific_layers(layout) == ("1", "5")
    assert FedCUAU(base="fedper").specific_layers(layout) == ("3",)
    assert FedCUAU(base="fedbabu:head=('3','5')").specific_layers(layout) == ("1",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 11}, "clusters=11: the federation has 10 clients"),
        ({"layers": "haed"}, "no layer 'haed'"),
        ({"specific": "nowhere"}, "no layer 'nowhere'"),
        ({"specific": 4}, "specific=4: fedavg trains 3 layers"),
        ({"base": "fedper", "specific": ("5",)}, "specific='5': fedper freezes it or keeps it private"),
        ({"base": "fedper:head=('1','3','5')"}, "no layer is left"),
        ({"layers": ()}, "holds no trainable numbers"),
    ],
)
def test_options_that_do_not_fit_the_federation(options: dict[str, Any], message: str, federation: Federation) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        FedCUAU(**options).start(server_of(federation))


@pytest.mark.parametrize("base", ["local", "fedcuau", "fedavgg", "fedprox:nu=1"])
def test_a_base_that_is_none_fails_at_once(base: str) -> None:
    with pytest.raises(ConfigError, match=r"base=|did you mean|no option"):
        make_method(f"fedcuau:base={base}")


def test_the_base_takes_options_of_its_own() -> None:
    one = make_method("fedcuau:base=fedprox:mu=0.25,clusters=2")
    two = make_method("fedcuau:base=(fedprox:mu=0.25,weighting=uniform),clusters=2")
    assert isinstance(one, FedCUAU)
    assert isinstance(two, FedCUAU)
    assert one.base_method().rule().proximal == two.base_method().rule().proximal == 0.25
    assert two.base_method().weighting == "uniform"
    assert one.clusters == two.clusters == 2
    with pytest.raises(ConfigError, match="brackets"):
        FedCUAU(base="fedprox:mu=0.25,weighting=uniform")


def test_state_survives_a_snapshot(federation: Federation, tmp_path: Any) -> None:
    server, method = server_of(federation), FedCUAU(clusters=3)
    *_, state = rounds(method, server, 1)
    save_snapshot(state, tmp_path / "state")
    kept = load_snapshot(tmp_path / "state")
    assert isinstance(kept, State)
    (a, _), (b, _) = method.round(state, 2, server), method.round(kept, 2, server)
    assert torch.equal(a.specific, b.specific)
    assert kept.cluster == state.cluster


@pytest.mark.parametrize("base", ["fedavg", "fedper"])
def test_worker_processes_change_nothing(base: str, federation: Federation) -> None:
    method, ends = FedCUAU(base=base, clusters=3), []
    for workers in (1, 2):
        server = server_of(federation)
        server.engine = LocalEngine(federation, network, workers=workers)
        *_, state = rounds(method, server, 2)
        scores = personalised(method.assignment(state, server), server.engine, TRAINING, seed=0)
        ends.append((state, server.engine.client_states(), scores))
        server.engine.close()
    (here, own, scores), (there, their, their_scores) = ends
    assert torch.equal(here.model, there.model)
    assert torch.equal(here.specific, there.specific)
    assert here.cuau == there.cuau
    assert scores == their_scores
    assert own.keys() == their.keys()
    assert all(torch.equal(own[c]["private"], their[c]["private"]) for c in own)


def test_a_cluster_model_is_the_shared_layers_with_its_own(federation: Federation) -> None:
    server, method = server_of(federation), FedCUAU(clusters=2)
    *_, state = rounds(method, server, 2)
    given: Assignment = method.assignment(state, server)
    layout = server.engine.layout
    places = layout.select("5")
    expected = state.model.clone()
    scatter(expected, places, state.specific[0])
    assert torch.equal(given.models[0], expected)
    assert torch.equal(given.models[1], state.model)
    assert span_size(places) == state.specific.shape[1]


def test_the_clusters_in_words_by_hand() -> None:
    event = clusters_in_words({"a": 0, "b": 1, "c": 1, "d": 1}, {"a": 0.5, "b": 0.25, "c": 0.125}, 3)
    ranges = "C1 1 clients, CUAU 0.5 to 0.5; C2 3 clients, CUAU 0.125 to 0.25; C3 0 clients"
    assert event.text == f"clustered by heterogeneity: {ranges}"
