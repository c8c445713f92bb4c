"""CFL's checks on secret projections: the decisions of the clear run, and nothing but projections and sums is seen."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import coterie
from coterie.data.scenarios import find_scenario
from coterie.privacy.projection import CompareHalves
from coterie.randomness import derive
from coterie.tasks import HalfUpdates

OPTIONS = {"scenario": "digits-permuted", "clients": 9, "groups": 3, "rounds": 7, "samples": 60, "workers": 1}
PRIVATE = {"method": "cfl:compare=projection(1024)", "privacy": "projection"}


def splits_of(result):
    return [(record.round, split.cluster, split.members) for record in result.history for split in record.splits]


class Overheard:
    """Keeps what the server gets: tasks that were asked one by one, and tasks whose vectors were added up."""

    def __init__(self):
        self.single, self.summed = set(), set()

    def on_start(self, run, done):
        inner = run.engine.run

        def watched(requests, reduce=None):
            (self.single if reduce is None else self.summed).update(type(request.task) for request in requests)
            for block in inner(requests, reduce):
                assert all(reply.vector is None for reply in block.replies)
                yield block

        run.engine.run = watched

    def on_event(self, t, event): ...

    def on_round(self, record): ...

    def on_end(self, result): ...


@cache
def clear_run(participation, rounds):
    return coterie.run(
        "cfl", **OPTIONS | {"clients": 12, "groups": 2, "participation": participation, "rounds": rounds}
    )


@pytest.mark.usefixtures("unshortened_halves")
@pytest.mark.parametrize(
    ("more", "differ_by"),
    [({}, 0.0), ({"secure_sums": True}, 1e-6), ({"participation": 0.7}, None)],
)
def test_clusters_and_tree_are_those_of_the_clear_run_and_no_half_update_is_seen(more, differ_by):
    all_take_part = "participation" not in more
    # Two groups: of three that are equally far apart it is a toss-up which is split off first.
    options = OPTIONS | {"clients": 12, "groups": 2} | ({} if all_take_part else {"rounds": 20})
    clear = clear_run(more.get("participation", 1.0), options["rounds"])
    heard = Overheard()
    private = coterie.run(**PRIVATE, **options, **more, callbacks=[heard])
    # Below full participation all members of the sides are asked at once, so that a split may come earlier.
    assert [split[1:] for split in splits_of(private)] == [split[1:] for split in splits_of(clear)] != []
    assert not all_take_part or [split[0] for split in splits_of(private)] == [split[0] for split in splits_of(clear)]
    assert not [fault for record in private.history for fault in record.faults]
    if differ_by is not None:
        for ours, theirs in zip(private.models, clear.models, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=differ_by)
    assert HalfUpdates in heard.summed
    assert CompareHalves in heard.single
    assert HalfUpdates not in heard.single


def test_three_groups_are_those_of_the_clear_run():
    clear = coterie.run("cfl", **OPTIONS)
    private = coterie.run(**PRIVATE, **OPTIONS)
    assert sorted(private.clusters) == sorted(clear.clusters)
    assert len(private.clusters) == 3


def test_under_secure_sums_a_side_below_the_minimum_is_not_judged():
    heard = Overheard()
    result = coterie.run(**PRIVATE, **OPTIONS, secure_sums=True, secure_minimum=4, callbacks=[heard])
    assert splits_of(result) == []
    assert CompareHalves in heard.single
    assert HalfUpdates not in heard.summed  # nothing was opened
    assert not [fault for record in result.history for fault in record.faults]


def test_newcomers_are_placed_by_projections_at_the_model_of_the_split(tmp_path):
    coterie.run(**PRIVATE, **OPTIONS, out=tmp_path / "run")
    loaded = coterie.load(tmp_path / "run")
    newcomers = find_scenario("digits-permuted").build(clients=9, groups=3, samples=60, seed=derive(0, "scenario"))
    homes = loaded.assign(newcomers)
    assert len(set(homes.values())) == 3
    assert homes == {client: loaded.state.tree.leaf_of(client).id for client in newcomers.ids}
