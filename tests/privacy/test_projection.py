"""Secret projections: cosines stay within the stated error, and CFL decides as it would on the updates themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie
from coterie.clustering import cosine_matrix
from coterie.errors import ConfigError
from coterie.privacy.keys import make_key, new_key
from coterie.privacy.projection import hadamard, project


def test_the_transform_keeps_lengths_and_is_its_own_inverse():
    x = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(hadamard(hadamard(x)), x)
    assert float(hadamard(x).norm()) == pytest.approx(float(x.norm()))
    one = torch.zeros(4, dtype=torch.float64)
    one[1] = 1
    assert hadamard(one).tolist() == [0.5, -0.5, 0.5, -0.5]


def test_a_transform_in_several_factors_is_the_one_of_the_definition():
    index = np.arange(2**9)
    common = index[:, None] & index
    ones = sum((common >> bit) & 1 for bit in range(9))
    matrix = torch.from_numpy((-1.0) ** ones / 2**4.5)
    x = torch.randn(2**9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(hadamard(x), matrix @ x)


@pytest.mark.parametrize("angle", [0.0, 0.5, 0.9])
def test_the_error_of_a_cosine_is_what_is_stated(angle):
    generator = torch.Generator().manual_seed(1)
    width, d, found = 128, 900, []
    for i in range(120):
        x, y = torch.randn(2, d, generator=generator, dtype=torch.float64)
        x, y = x / x.norm(), y - (y @ x) / (x @ x) * x
        y = angle * x + (1 - angle**2) ** 0.5 * y / y.norm()
        found.append(cosine_matrix(project(torch.stack([x, y]), make_key(i), width))[0, 1])
    error = (1 - angle**2) / width**0.5
    assert np.mean(found) == pytest.approx(angle, abs=4 * error / len(found) ** 0.5 + 1e-3)
    assert 0.75 * error < np.std(found) < 1.25 * error


def test_a_projection_wider_than_the_model_is_refused_before_the_first_round(tmp_path):
    wide = {"scenario": "digits-permuted", "samples": 40, "model": "logistic", "rounds": 6, "workers": 1}
    with pytest.raises(ConfigError, match="projection=4096 is more than the 1024 mixed numbers"):
        coterie.run("cfl:compare=projection(4096)", privacy="projection", out=tmp_path / "run", **wide)
    history = tmp_path / "run" / "history.jsonl"
    assert not history.exists() or not history.read_text()


def test_sparse_updates_are_spread_over_all_numbers():
    sparse = torch.zeros(2, 1000)
    sparse[:, 3] = torch.tensor([1.0, -1.0])
    found = project(sparse, make_key(1), 64)
    assert float(found.abs().max()) < 0.8
    assert cosine_matrix(found)[0, 1] == pytest.approx(-1)


def test_another_key_gives_another_projection():
    x = torch.randn(1, 500, generator=torch.Generator().manual_seed(0))
    assert abs(cosine_matrix(torch.cat([project(x, make_key(n), 128) for n in (1, 2)]))[0, 1]) < 0.4
    assert torch.equal(project(x, make_key(1), 128), project(x, make_key(1), 128))


def test_more_numbers_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="projection=600"):
        project(torch.zeros(1, 500), make_key(1), 600)


def test_projections_under_two_names_cannot_be_compared():
    x = torch.randn(1, 500, generator=torch.Generator().manual_seed(0))
    here, there = (project(x, make_key(1), 128, name) for name in ("here", "there"))
    assert abs(cosine_matrix(torch.cat([here, there]))[0, 1]) < 0.4


def test_a_search_of_numbers_finds_a_number_and_no_key_of_256_bits():
    assert len(new_key()) == 32
    update = torch.arange(1.0, 13.0)[None]

    def found(key):
        seen = project(update, key, 8)
        return [n for n in range(300) if torch.equal(project(update, make_key(n), 8), seen)]

    assert found(make_key(222)) == [222]
    assert found(new_key()) == []


def splits_of(result):
    return [(record.round, split.cluster, split.members) for record in result.history for split in record.splits]


def test_cfl_splits_as_on_the_updates_themselves_and_never_asks_for_one():
    options = {"scenario": "digits-permuted", "clients": 8, "groups": 2, "rounds": 12, "seed": 3, "workers": 1}
    rule = "cfl:rule=paper(eps1=10,eps2=0.001,gamma_max=0.05,wait=6,min_size=4)"
    plain = coterie.run(rule, **options)
    private = coterie.run(f"{rule},compare=projection(1024)", **options, callbacks=[Watching()])
    assert splits_of(private) == splits_of(plain) != []
    assert private.clusters == plain.clusters
    for ours, theirs in zip(private.models, plain.models, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class Watching:
    """Fails when the server is given a vector of a single client."""

    def on_start(self, run, done):
        inner = run.engine.run

        def watched(requests, reduce=None):
            for block in inner(requests, reduce):
                assert all(reply.vector is None for reply in block.replies)
                yield block

        run.engine.run = watched

    def on_event(self, t, event): ...

    def on_round(self, record): ...

    def on_end(self, result): ...


def test_a_rule_that_needs_single_vectors_is_refused():
    options = {"scenario": "digits-permuted", "clients": 4, "rounds": 1, "workers": 1, "aggregate": "median"}
    with pytest.raises(ConfigError, match="projection goes with"):
        coterie.run("cfl:compare=projection(64)", **options)
