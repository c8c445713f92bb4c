"""The flat vector: round trips, no shared memory, buffers last, and layers found by name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie.errors import ConfigError
from coterie.parameters import Entry, Layout, gather, scatter, span_size


class Tied(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()))
        self.norm = nn.BatchNorm1d(width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight


LAYERS = {
    "linear": lambda w: nn.Linear(w, w),
    "bare": lambda w: nn.Linear(w, w, bias=False),
    "norm": lambda w: nn.BatchNorm1d(w),
    "conv": lambda w: nn.Conv2d(w, 2, 3),
    "tied": Tied,
    "relu": lambda w: nn.ReLU(),
    "nested": lambda w: nn.Sequential(nn.Linear(w, 2), nn.BatchNorm1d(2)),
}
MODULES = st.lists(st.tuples(st.sampled_from(sorted(LAYERS)), st.integers(1, 4)), min_size=1, max_size=5).map(
    lambda parts: nn.Sequential(*[LAYERS[kind](width) for kind, width in parts])
)


@given(MODULES, st.integers(0, 99))
def test_round_trip_without_shared_memory(module, seed):
    layout = Layout.of(module)
    generator = torch.Generator().manual_seed(seed)
    vector = torch.rand(layout.size, generator=generator).mul(9).round()  # whole numbers fit counters too
    kept = vector.clone()
    layout.write(vector, module)
    assert torch.equal(layout.read(module), vector)
    vector.zero_()
    read = layout.read(module)
    assert torch.equal(read, kept)
    read.zero_()
    assert torch.equal(layout.read(module), kept)


@given(MODULES)
def test_entries_tile_the_vector_with_buffers_last(module):
    layout = Layout.of(module)
    at = 0
    for entry in layout.entries:
        assert entry.start == at
        at = entry.stop
    assert at == layout.size
    assert [e.buffer for e in layout.entries] == sorted(e.buffer for e in layout.entries)
    assert layout.trainable == sum(p.numel() for p in module.parameters())
    assert layout.size - layout.trainable == sum(b.numel() for b in module.buffers())


@given(MODULES, st.data())
def test_select_and_complement_cover_everything_once(module, data):
    layout = Layout.of(module)
    if not layout.layers:
        return
    chosen = data.draw(st.lists(st.sampled_from(layout.layers), unique=True))
    spans = layout.select(chosen)
    rest = layout.complement(spans)
    places = [i for span in (*spans, *rest) for i in range(span.start, span.stop)]
    assert sorted(places) == list(range(layout.size))
    assert span_size(spans) + span_size(rest) == layout.size
    vector = torch.arange(2 * layout.size, dtype=torch.float32).reshape(2, -1)
    copy = torch.zeros_like(vector)
    scatter(copy, spans, gather(vector, spans))
    scatter(copy, rest, gather(vector, rest))
    assert torch.equal(copy, vector)


def test_gather_copies():
    vector = torch.zeros(4)
    gather(vector, (slice(0, 4),)).add_(1)
    gather(vector, ()).resize_(1)
    assert vector.tolist() == [0, 0, 0, 0]


def test_layers_by_hand():
    module = nn.Sequential()
    module.add_module("body", nn.Linear(3, 2))
    module.add_module("norm", nn.BatchNorm1d(2))
    module.add_module("head", nn.Linear(2, 1))
    layout = Layout.of(module)
    assert layout.layers == ("body", "norm", "head")
    assert (layout.size, layout.trainable) == (8 + 4 + 3 + 5, 15)
    assert layout.select("last") == (slice(12, 15),)
    assert layout.select("body.bias") == (slice(6, 8),)
    assert layout.select(("norm",)) == (slice(8, 12), slice(15, 20))  # the statistics go with their layer
    assert layout.select(("head", "norm")) == (slice(8, 20),)
    assert layout.complement(layout.select("head")) == (slice(0, 12), slice(15, 20))
    assert layout.select(()) == ()
    assert layout.unflatten(torch.zeros(7, 20))["body.weight"].shape == (7, 2, 3)


def test_unknown_layer_is_an_error_with_a_suggestion():
    layout = Layout.of(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ConfigError, match=r"no layer '0\.wieght' in this model: did you mean '0\.weight'"):
        layout.select("0.wieght")


def test_a_layer_name_is_not_taken_for_a_longer_one():
    module = nn.ModuleDict({"fc": nn.Linear(1, 1), "fc2": nn.Linear(1, 1)})
    assert Layout.of(module).select("fc") == (slice(0, 2),)


def test_tied_weights_stand_once_and_stay_tied():
    module = Tied(2)
    layout = Layout.of(module)
    layout.write(torch.arange(layout.size, dtype=torch.float32), module)
    assert module.second.weight is module.first.weight
    assert [e.name for e in layout.entries].count("second.weight") == 0


def test_every_weight_belongs_to_an_output_of_its_layer() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    layout = Layout.of(module)
    named = {name: tuple(layout.output_of()[e.start : e.stop].tolist()) for name, e in entries(layout).items()}
    assert named["0.weight"] == (0, 0, 1, 1, 2, 2)
    assert named["0.bias"] == (0, 1, 2)
    assert named["1.weight"] == named["1.bias"] == (3, 4, 5)
    assert named["2.weight"] == (6, 6, 6, 7, 7, 7)
    assert named["2.bias"] == (6, 7)


def entries(layout: Layout) -> dict[str, Entry]:
    return {entry.name: entry for entry in layout.entries if not entry.buffer}
