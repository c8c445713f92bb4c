"""FLT: rows that sum to one, members bitwise equal, no labels in the relatedness, newcomers, and its baselines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage

import coterie
import coterie.encoders
from coterie.clustering import adjusted_rand_index, mixing_matrix
from coterie.clustering.relatedness import out_of_range, ward_merges
from coterie.data.scenarios import find_scenario
from coterie.engines import LocalEngine
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.methods import FLT, FedSEM, PcaKMeansHC, Server, make_method
from coterie.methods.fedsem import Point
from coterie.methods.flt import form_relatives, within_range
from coterie.methods.graph_averaging import Relatives, State, averaging_round, graph_assignment
from coterie.models import build
from coterie.snapshot import load_snapshot, save_snapshot
from coterie.tasks.base import Reduction, ReplyBlock, Request
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule
from printed_pages import ROOT, Reader, blocks_of


def desk(federation: Federation, participation: float = 1.0, seed: int = 0) -> Server:
    def architecture(number: int) -> torch.nn.Module:
        return build("logistic", federation.input_shape, federation.classes, number)

    training = Training(lr=0.05, epochs=1, batch_size=10)
    engine = LocalEngine(federation, architecture)
    return Server(engine, make_schedule("constant", training, 10), seed, 10, participation)


@pytest.fixture(scope="module")
def digits() -> Federation:
    return find_scenario("flt-s1-digits").build(seed=0)


def state_of(server: Server, near: np.ndarray, models: torch.Tensor, row: Sequence[int]) -> State:
    blank = np.zeros((len(near), 1, 2), dtype=np.float32)
    return State(Relatives(server.clients, blank, blank, 1.0, near, ""), models, tuple(row))


@pytest.mark.parametrize("participation", [0.1, 0.35, 1.0])
def test_case_one_equals_the_mixing_matrix_times_the_clients_models(participation: float, digits: Federation) -> None:
    server = desk(digits, participation)
    rng = np.random.default_rng(1)
    near = rng.random((20, 20)) < 0.15
    near = near | near.T | np.eye(20, dtype=bool)
    models = torch.stack([server.initial_model(i) for i in range(20)])
    state = state_of(server, near, models, range(20))
    after, info = averaging_round(state, 1, server)

    asked = server.participants(1)
    own = models.double().clone()
    for i, client in enumerate(server.clients):
        if client in asked:
            reply = next(iter(server.train([client], models[i], 1)))
            own[i] += reply.vector
    samples = [server.samples[client] for client in server.clients]
    columns = [server.clients.index(client) for client in asked]
    mixing = mixing_matrix(near, samples, columns)
    np.testing.assert_allclose(mixing.sum(axis=1), 1.0, atol=1e-6)
    expected = (torch.from_numpy(mixing) @ own).float()
    got = after.models[list(after.row)]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    for i in range(20):
        if not near[i, columns].any():
            assert torch.equal(got[i], models[i])
    assert sum(cluster.members for cluster in info.clusters) == 20


class Unreliable(LocalEngine):
    """An engine whose first client never answers."""

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        kept = [i for i, request in enumerate(requests) if request.client != self.clients[0]]
        return super().run([requests[i] for i in kept], None if reduce is None else reduce.at(kept))


def test_a_client_that_fails_leaves_weights_that_still_sum_to_one(digits: Federation) -> None:
    small = digits.subset(digits.ids[:4])
    server = desk(small)
    whole = desk(small)
    server.engine.__class__ = Unreliable
    near = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=bool)
    model = server.initial_model()[None]
    after, _ = averaging_round(state_of(server, near, model, [0] * 4), 1, server)
    reply = next(iter(whole.train([small.ids[1]], model[0], 1)))
    assert reply.vector is not None
    torch.testing.assert_close(after.models[after.row[0]], model[0] + reply.vector)
    assert after.row[0] == after.row[1]

    alone = np.eye(4, dtype=bool)
    after, _ = averaging_round(state_of(server, alone, model, [0] * 4), 1, server)
    assert torch.equal(after.models[after.row[0]], model[0])


@pytest.mark.parametrize("participation", [0.2, 1.0])
def test_members_of_a_cluster_share_their_parameters_bit_for_bit(participation: float, digits: Federation) -> None:
    server = desk(digits, participation)
    groups = np.array(digits.groups)
    near = groups[:, None] == groups[None, :]
    state = state_of(server, near, server.initial_model()[None], [0] * 20)
    for t in range(1, 4):
        state, _ = averaging_round(state, t, server)
        for group in range(5):
            assert len({state.row[i] for i in np.flatnonzero(groups == group)}) == 1
        drawn = {digits.groups[server.clients.index(c)] for c in server.participants(t)}  # type: ignore[index]
        assert len(state.models) >= len(drawn)
    members = graph_assignment(state, server).members
    assert sorted(c for cluster in members for c in cluster) == sorted(server.clients)


def test_one_cluster_is_fedavg(digits: Federation) -> None:
    server = desk(digits, 0.5)
    state = state_of(server, np.ones((20, 20), dtype=bool), server.initial_model()[None], [0] * 20)
    reference = make_method("fedavg")
    fedavg = reference.start(server)
    for t in (1, 2):
        state, _ = averaging_round(state, t, server)
        fedavg, _ = reference.round(fedavg, t, server)
    assert len(state.models) == 1
    torch.testing.assert_close(state.models[0], fedavg.model, rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def found(digits: Federation) -> State:
    pytest.importorskip("umap")
    return FLT().start(desk(digits))


def test_the_groups_of_digits_are_found_without_being_told(found: State, digits: Federation) -> None:
    labels = np.unique(found.relatives.related, axis=0, return_inverse=True)[1].reshape(-1)
    assert adjusted_rand_index(labels, digits.groups) == 1.0


def relabelled(federation: Federation) -> Federation:
    def turned(split: Split) -> Split:
        return Split(split.x, (split.y * 7 + 3) % 10)

    clients = [Client(c.id, turned(c.train), turned(c.validation), turned(c.test), None) for c in federation]
    return Federation(clients, 10)


def test_no_label_and_no_group_reaches_the_relatedness(found: State, digits: Federation) -> None:
    other = FLT().start(desk(relabelled(digits)))
    np.testing.assert_array_equal(found.relatives.positions, other.relatives.positions)
    np.testing.assert_array_equal(found.relatives.related, other.relatives.related)


def test_the_stage_is_identical_on_rerun_and_survives_a_snapshot(
    found: State, digits: Federation, tmp_path: Any
) -> None:
    again = FLT().start(desk(digits))
    np.testing.assert_array_equal(found.relatives.positions, again.relatives.positions)
    save_snapshot(found, tmp_path / "state.safetensors")
    back = load_snapshot(tmp_path / "state.safetensors")
    np.testing.assert_array_equal(back.relatives.related, found.relatives.related)
    assert back.relatives.ids == found.relatives.ids
    assert back.row == found.row


def test_the_stage_counts_the_encoder_down_and_the_centroids_up(digits: Federation) -> None:
    server = desk(digits)
    encoder = coterie.encoders.load_encoder("pca")
    PcaKMeansHC(basis="public", k=5, least=1).start(server)
    assert server.traffic.drain() == (4 * 20 * encoder.weights.numel(), 4 * 20 * 5 * encoder.code)


def test_newcomers_join_their_group_and_move_nobody(digits: Federation) -> None:
    pytest.importorskip("umap")
    method = FLT(gamma="clearest")
    early = desk(digits.subset(digits.ids[:15]))
    before = method.start(early)
    before, _ = method.round(before, 1, early)
    server = desk(digits)
    unplaced = method.assignment(before, server)
    assert list(unplaced.members[-1]) == list(digits.ids[15:])
    after, _ = method.round(before, 2, server)
    assert after.relatives.ids == digits.ids
    np.testing.assert_array_equal(after.relatives.positions[:15], before.relatives.positions)
    np.testing.assert_array_equal(after.relatives.related[:15, :15], before.relatives.related)
    assert np.array_equal(after.relatives.related, after.relatives.related.T)
    # Fifteen clients are a small map: one of the five newcomers may land wrong (0.86), not two (0.75 or less).
    assert adjusted_rand_index(after.row, digits.groups) > 0.8
    alone = relabelled(digits.subset(digits.ids[15:]))  # after a run: by inputs alone, whatever the labels
    assert tuple(method.place(before, alone.ids, desk(alone)).values()) == after.row[15:]
    assert method.places_unlabelled
    first = replace(method, case=1)
    graph = first.admit(first.start(early), server)
    assert graph.relatives.related[15:].any(axis=1).all()


@pytest.fixture
def without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Centroids are laid out by their main directions: what is tested comes after the layout."""
    monkeypatch.setattr("coterie.clustering.manifold._UMAP_NEEDS", 10**9)
    monkeypatch.setattr("coterie.methods.flt.import_umap", lambda: None)


def test_one_family_stays_whole_unless_gamma_decides(without_umap: None) -> None:
    alike = find_scenario("digits-permuted").build(clients=20, groups=1, seed=3)
    method = FLT(encoder="pca")
    state = method.start(desk(alike))
    assert state.relatives.related.all()
    assert "one family" in state.relatives.text
    assert state.relatives.gamma is None
    assert not replace(method, gamma=0.5, case=1).reconsidered(state).relatives.related.all()


def test_case_auto_takes_clusters_a_graph_or_one_family_by_the_evidence() -> None:
    rng = np.random.default_rng(0)
    centres = 10 * rng.normal(size=(10, 2))

    def formed(words: np.ndarray) -> Relatives:
        positions = (centres[words] + 0.1 * rng.normal(size=(*words.shape, 2))).astype(np.float32)
        ids = tuple(f"c{i}" for i in range(len(words)))
        return form_relatives(ids, positions, positions, FLT(case="auto"))

    groups = np.arange(30) % 3
    clusters = formed(3 * groups[:, None] + np.array([0, 1, 2, 0, 1]))
    assert clusters.gamma is None
    assert adjusted_rand_index(np.unique(clusters.related, axis=0, return_inverse=True)[1].reshape(-1), groups) == 1
    family = formed(np.stack([rng.choice(10, 5, replace=False) for _ in range(30)]))
    assert family.gamma is None
    assert family.related.all()
    graph = formed(np.stack([rng.choice(10, 5, p=rng.dirichlet([0.3] * 10)) for _ in range(30)]))
    assert graph.gamma is not None
    assert not graph.related.all()


def test_a_client_whose_codes_are_not_finite_is_a_fault_and_the_others_go_on(
    digits: Federation, without_umap: None
) -> None:
    first = digits.clients[0]
    wild = replace(first, train=Split(torch.full_like(first.train.x, 3e38), first.train.y))
    server = desk(Federation([wild, *digits.clients[1:]], 10))
    state = FLT(encoder="pca").start(server)
    assert state.relatives.ids == digits.ids[1:]
    assert [(fault.client, fault.reason) for fault in server.engine.faults()] == [
        (first.id, "its centroids are not finite: look at its data")
    ]


def test_a_client_whose_centroids_are_too_far_to_be_compared_is_a_fault_and_asked_again(digits: Federation) -> None:
    """UMAP gives a point no place that is infinitely far from all others, and the run used to end there."""
    first = digits.clients[0]
    wild = replace(first, train=Split(first.train.x * 1e30, first.train.y))
    server = desk(Federation([wild, *digits.clients[1:]], 10))
    method = FLT(encoder="pca")
    state = method.start(server)
    assert state.relatives.ids == digits.ids[1:]
    assert [fault.client for fault in server.engine.faults()] == [first.id]
    after, _ = method.round(state, 1, server)
    assert after.relatives.ids == digits.ids[1:]
    assignment = method.assignment(after, server)
    assert sorted(client for members in assignment.members for client in members) == sorted(digits.ids)
    assert all(torch.isfinite(model).all() for model in assignment.models)


def test_gamma_that_relates_nobody_or_everybody_leaves_no_ground_for_clusters(
    digits: Federation, without_umap: None
) -> None:
    server = desk(digits)
    for gamma, who in ((1e-9, "nobody"), (1e9, "everybody")):
        with pytest.raises(ConfigError, match=f"relates {who} .* no ground for 4 clusters"):
            FLT(encoder="pca", gamma=gamma, clusters=4).start(server)


def test_umaps_dimensions_wards_input_and_the_number_of_clusters_are_options(
    digits: Federation, without_umap: None
) -> None:
    state = FLT(encoder="pca", components=3, clusters=5).start(desk(digits))
    assert state.relatives.positions.shape == (20, 5, 3)
    assert len(np.unique(state.relatives.related, axis=0)) == 5
    near = np.zeros((7, 7), dtype=bool)
    near[:4, :4] = near[4:6, 4:6] = near[6, 6] = True
    near[3, 4] = near[4, 3] = True
    assert not np.array_equal(ward_merges(near), ward_merges(near, unit=False))
    plain = ward_merges(near, unit=False)[:, 2]
    assert plain[-1] == pytest.approx(linkage(near.astype(float), "ward")[-1, 2])


def test_options_that_do_not_fit_are_refused(digits: Federation) -> None:
    server = desk(digits)
    with pytest.raises(ConfigError, match="clusters=21 with 20 clients"):
        FLT(clusters=21).start(server)
    with pytest.raises(ConfigError, match="case=1"):
        FLT(case=1, clusters=3).start(server)
    with pytest.raises(ConfigError, match=r"gamma=0\.5 goes with case=1 or case=2"):
        FLT(case="auto", gamma=0.5).start(server)
    with pytest.raises(ConfigError, match="no such file"):
        FLT(encoder="nowhere.safetensors").start(server)
    with pytest.raises(ConfigError, match="conv encoder"):
        PcaKMeansHC(basis="default").start(server)
    with pytest.raises(ConfigError, match="clusters=9, but 4 clients"):
        FedSEM(clusters=9).start(desk(digits, 0.2))
    for bad in (
        "flt:case=3",
        "flt:gamma=-1",
        "flt:k=0",
        "flt:distance=far",
        "flt:gamma=sometimes",
        "flt:neighbours=1",
        "flt:components=0",
        "fedsem:clusters=0",
    ):
        with pytest.raises(ConfigError):
            make_method(bad)


def test_shared_axes_find_the_groups_and_own_axes_do_not(digits: Federation) -> None:
    shared, own = (PcaKMeansHC(basis=b, clusters=5).start(desk(digits)) for b in ("public", "own"))
    scores = []
    for state in (shared, own):
        labels = np.unique(state.relatives.related, axis=0, return_inverse=True)[1].reshape(-1)
        scores.append(adjusted_rand_index(labels, digits.groups))
    assert scores[0] > 0.9 > scores[1]


@pytest.mark.parametrize("over", ["everybody", "participants"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedsem_moves_a_centre_to_the_mean_of_the_models_nearest_to_it(
    digits: Federation, over: Literal["everybody", "participants"], weighting: Literal["samples", "uniform"]
) -> None:
    server = desk(digits, 0.4)
    method = FedSEM(clusters=3, over=over, weighting=weighting)
    state = method.start(server)
    models = {client: server.initial_model().double() for client in server.clients}
    for t in (1, 2, 3):
        after, info = method.round(state, t, server)
        assert after.centres.shape[0] == 3
        mean = state.centres.mean(0)
        for client in server.participants(t):
            start = state.centres[state.cluster_of[client]] if client in state.cluster_of else mean
            reply = next(iter(server.train([client], start, t)))
            assert reply.vector is not None
            models[client] = (start + reply.vector).double()
        counted = server.clients if over == "everybody" else server.participants(t)
        if t > 1:
            for client in counted:
                gaps = [float((models[client] - centre.double()).norm()) for centre in state.centres]
                assert after.cluster_of[client] == int(np.argmin(gaps))
        for number, centre in enumerate(after.centres):
            own = [c for c in counted if after.cluster_of[c] == number]
            if own:
                weights = torch.tensor([server.weight(c, weighting) for c in own], dtype=torch.float64)
                expected = (torch.stack([models[c] for c in own]) * weights[:, None]).sum(0) / weights.sum()
                torch.testing.assert_close(centre.double(), expected, rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(centre, state.centres[number])
        assert sum(cluster.members for cluster in info.clusters) == 20
        state = after
    assert len(set(server.participants(1)) | set(server.participants(2)) | set(server.participants(3))) < 20


def test_fedsem_counts_clients_never_drawn_in_its_first_k_means(digits: Federation) -> None:
    server = desk(digits, 0.3)
    method = FedSEM(clusters=3)
    state, _ = method.round(method.start(server), 1, server)
    strangers = set(server.clients) - set(server.participants(1))
    assert len({state.cluster_of[client] for client in strangers}) == 1
    for weight, alone in (
        (1.0, False),
        (50.0, True),
    ):  # of 0, 2.1, 3 and 5, the first two are a pair, unless 0 is heavy
        points = [Point([str(x)], torch.tensor([x]), weight if x == 0 else 1.0) for x in (0.0, 2.1, 3.0, 5.0)]
        labels = FedSEM(clusters=2)._first_clusters(points, 0)
        assert (labels.count(labels[0]) == 1) is alone


def test_fedsem_keeps_no_models_of_a_round_when_participants_alone_count(digits: Federation) -> None:
    server = desk(digits, 0.3)
    method = FedSEM(clusters=3, over="participants")
    state, _ = method.round(method.start(server), 1, server)
    assert not state.models


def test_fedsem_deals_the_first_clients_evenly_and_blindly() -> None:
    generator = torch.Generator().manual_seed(0)

    def dealt(models: torch.Tensor, clusters: int, seed: int) -> list[int]:
        points = [Point([str(i)], model, 1.0) for i, model in enumerate(models)]
        return FedSEM(clusters=clusters, init="random")._first_clusters(points, seed)

    for count, clusters in ((5, 5), (7, 2), (480, 10)):
        some, others = torch.randn(2, count, 3, generator=generator)
        for seed in range(3):
            labels = dealt(some, clusters, seed)
            sizes = np.bincount(labels, minlength=clusters)
            assert sizes.sum() == count
            assert sizes.min() >= max(1, sizes.max() - 1)
            assert dealt(others, clusters, seed) == labels
    assert dealt(some, 10, 0) != dealt(some, 10, 1)


def test_fedsem_judges_clients_never_drawn_by_the_mean_of_the_centres(digits: Federation) -> None:
    server = desk(digits, 0.3)
    method = FedSEM(clusters=3, over="participants")
    state, _ = method.round(method.start(server), 1, server)
    given = method.assignment(state, server)
    strangers = set(server.clients) - set(server.participants(1))
    assert set(given.members[-1]) == strangers
    torch.testing.assert_close(given.models[-1], state.centres.mean(0))


def test_a_run_of_flt_beats_fedavg_on_digits() -> None:
    pytest.importorskip("umap")
    ours, theirs = (
        coterie.run(name, scenario="flt-s1-digits", rounds=6, seed=0, evaluate_every=6) for name in ("flt", "fedavg")
    )
    assert ours.summary.ari == 1.0
    assert ours.summary.accuracy.mean > theirs.summary.accuracy.mean + 0.1
    assert ours.summary.accuracy.variance < theirs.summary.accuracy.variance
    assert ours.history[0].events[0].kind == "relatedness"


def test_the_page_on_flt_runs_as_printed() -> None:
    """Here rather than with the other pages, because UMAP is compiled in this process already."""
    pytest.importorskip("umap")
    page = ROOT / "docs" / "methods" / "flt.md"
    reader = Reader(page)
    try:
        for block in blocks_of(page):
            if block.language == "python":
                reader.run(block)
        assert len(reader.module.result.clusters) > 1
    finally:
        reader.close()


def heaps(clients: int = 12, k: int = 4) -> np.ndarray:
    """Centroids `(M, k, 8)` of three families around places that are 10 apart."""
    rng = np.random.default_rng(4)
    places = 10 * np.eye(3, 8)
    return np.array([places[i % 3] + rng.normal(size=(k, 8)) for i in range(clients)], dtype=np.float32)


def test_centroids_far_outside_the_range_are_told_by_their_distance_from_the_middle() -> None:
    points = heaps()
    assert not out_of_range(points).any()
    points[3, 2:] = np.nan  # a small client has fewer
    points[5, 0] *= -3
    points[7] *= 100
    assert np.flatnonzero(out_of_range(points)).tolist() == [5, 7]
    assert not out_of_range(np.zeros((0, 4, 8), dtype=np.float32)).any()
    assert not out_of_range(np.ones((3, 4, 8), dtype=np.float32)).any()


@pytest.mark.parametrize("hostile", [(7,), (2, 4, 7)])
def test_centroids_out_of_range_do_not_move_the_others(hostile: tuple[int, ...]) -> None:
    """The others' families are those that they form by themselves, and nobody is related to those far outside."""
    points = heaps()
    points[list(hostile)] *= -10
    ids = tuple(f"c{i}" for i in range(len(points)))
    rest = [i for i in range(len(points)) if i not in hostile]
    found = within_range(ids, points, FLT())
    alone = within_range(tuple(ids[i] for i in rest), points[rest], FLT())
    np.testing.assert_array_equal(found.related[np.ix_(rest, rest)], alone.related)
    np.testing.assert_array_equal(found.positions[rest], alone.positions)
    assert not found.related[np.ix_(rest, list(hostile))].any()
    assert all(found.related[i, i] for i in hostile)
    assert "far outside" in found.text
    assert all(ids[i] in found.text for i in hostile)
