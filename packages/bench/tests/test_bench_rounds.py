"""The plain loop and the engine do the same rounds, and what is counted about them is right."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from coterie import Split, Training
from coterie.parameters import Layout
from coterie.randomness import derive
from coterie.trainers import bfloat16_support, default_loss
from coterie_bench.contenders import OURS, PLAIN, STEADY, OurRounds, PlainRounds, SteadyRounds
from coterie_bench.fedjax_rounds import FEDJAX, FedjaxRounds, chain_of
from coterie_bench.findings import BenchOptions, Limit
from coterie_bench.measure import Spread, Timing, cost_per_sample, cpu_seconds, interleaved
from coterie_bench.others import FLUKE, MAKERS, load_contender
from coterie_bench.pfl_rounds import PFL, PflRounds
from coterie_bench.plain import PlainServer, average
from coterie_bench.rounds import operations, time_rounds
from coterie_bench.workloads import W3, W4, W5, Workload

FEW = Training(lr=0.1, epochs=1, batch_size=3)
FULL = Training(lr=0.2, steps=4, batch_size=None)
MLP = Workload(8, 7, "mlp:hidden=9", (12,), 3, FEW, participation=0.5)
WORKLOADS = {
    "mlp": MLP,
    "regression": Workload(5, 4, "linear", (6,), 0, FULL, regression=True),
    "convolution": Workload(3, 6, "cnn-small", (1, 8, 8), 4, FEW),
    "tokens": Workload(2, 5, "lstm:embedding=4,hidden=5", (6,), 11, FEW, tokens=True),
}


def vectors(server, layout, module):
    """The plain server's models as flat vectors."""
    found = []
    for weights in server.models:
        module.load_state_dict(weights)
        found.append(layout.read(module, torch.float64))
    return torch.stack(found)


@pytest.mark.parametrize("name", WORKLOADS)
def test_plain_loop_and_engine_agree_after_two_rounds(name):
    workload = WORKLOADS[name]
    federation = workload.federation(3)
    ours = OurRounds(workload, federation, 3, 1)
    plain = PlainRounds(workload, federation, ours.server)
    start = ours.state.model.double()
    for t in (1, 2):
        ours.round(t)
        plain.round(t)
    layout = ours.engine.layout
    found = vectors(plain.server, layout, workload.architecture()(0))[0]
    trained = slice(0, layout.trainable)
    moved = (ours.state.model.double() - start)[trained].norm()
    assert moved > 0
    assert (found - ours.state.model.double())[trained].norm() < 1e-4 * moved


def test_plain_ifca_and_engine_agree_in_float64():
    workload = Workload(6, 8, "mlp:hidden=9", (12,), 3, FULL, k=3)
    federation = workload.federation(0)
    ours = OurRounds(workload, federation, 0, 1, precision="float64")
    plain = PlainServer(
        [Split(client.train.x.double(), client.train.y) for client in federation],
        lambda seed: workload.architecture()(seed).double(),
        [derive(0, "model", j) for j in range(3)],
        default_loss(regression=False),
        FULL,
    )
    for t in (1, 2, 3):
        ours.round(t)
        plain.round(range(6), range(6))
    module = workload.architecture()(0).double()
    found = vectors(plain, Layout.of(module), module)
    assert (found - ours.state.models).abs().max() < 1e-10
    assert len(set(ours.state.choices.last.values())) > 1


def test_steady_rounds_send_one_model_and_keep_choices():
    workload = Workload(6, 8, "mlp:hidden=9", (12,), 3, FULL, k=3)
    ours = OurRounds(workload, workload.federation(0), 0, 1)
    ours.round(1)
    chosen = ours.state.choices.last
    steady = SteadyRounds(ours)
    ours.server.traffic.drain()
    ours.round(2)
    whole, up = ours.server.traffic.drain()
    steady.round(2)
    own, none = ours.server.traffic.drain()
    size = 4 * ours.server.layout.size
    assert whole - own == 6 * 2 * size
    assert up - none == 6 * 8  # the choice
    assert steady.state.choices.last == chosen


def test_an_average_is_weighted_and_leaves_counters_alone():
    one = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(7)}
    two = {"w": torch.tensor([5.0, 2.0]), "n": torch.tensor(9)}
    mean = average([(one, 1.0), (two, 3.0)])
    assert mean["w"].tolist() == [4.0, 2.0]
    assert mean["n"] == 7


def test_contenders_alternate_and_the_order_reverses():
    calls = []

    class Named:
        def __init__(self, name):
            self.name = name

        def round(self, t):
            calls.append((self.name, t))

        def close(self):
            pass

    timing = interleaved([Named("a"), Named("b")], 3, 2, lambda text: None)
    assert calls == [("a", 2), ("b", 2), ("b", 3), ("a", 3), ("a", 4), ("b", 4)]
    assert {name: len(values) for name, values in timing.seconds.items()} == {"a": 3, "b": 3}
    assert min(timing.peaks) > 0


def test_ratios_are_taken_within_a_repetition():
    timing = Timing({"ours": [1.0, 2.0, 4.0], "theirs": [3.0, 8.0, 8.0]}, [10.0, 10.0, 5.0])
    assert timing.ratios("ours", "theirs") == [3.0, 4.0, 2.0]
    assert Spread.of(timing.ratios("ours", "theirs")) == Spread(3.0, 2.0, 4.0)
    assert timing.shares_of_peak("ours", 20.0) == [2.0, 1.0, 1.0]


def test_operations_are_counted_as_by_hand():
    mlp = 12 * 9 + 9 * 3
    cost = cost_per_sample(MLP.architecture()(0), default_loss(regression=False), MLP.data(0, 0))
    # Backward: every weight's gradient, and that of the hidden values, but none of the inputs.
    assert cost.forward == 2 * mlp
    assert cost.training == 2 * (2 * mlp + 9 * 3)
    assert operations(MLP, MLP.federation(0)) == 4 * 7 * cost.training
    ifca = Workload(6, 8, "mlp:hidden=9", (12,), 3, FULL, k=3)
    assert operations(ifca, ifca.federation(0)) == 6 * 8 * (4 * cost.training + 3 * cost.forward)


def test_the_operations_of_an_lstm_are_those_of_its_products():
    workload = WORKLOADS["tokens"]
    cost = cost_per_sample(workload.architecture()(0), default_loss(regression=False), workload.data(0, 0))
    a_token = 4 * 5 * (4 + 5) + 4 * 5 * (5 + 5) + 5 * 11
    assert cost.forward == 2 * 6 * a_token


def test_a_row_has_every_contender_and_whether_limits_are_met():
    options = BenchOptions(scale="full", repeat=2, workers=1, one_thread=True)
    workload = Workload(4, 8, "mlp:hidden=9", (12,), 3, FULL, k=2)
    finding = time_rounds(
        options, workload, "tiny", Limit("× plain loop", 1e9), share=Limit("% of GEMM peak", 0), steady=True
    )
    assert set(finding.seconds) == {OURS, PLAIN, f"{PLAIN}, threads=1", STEADY}
    assert all(len(values) == 2 for values in finding.seconds.values())
    never, always = finding.lines
    assert (never["met"], always["met"]) == (False, True)
    assert "GEMM peak" in never["reason"]
    assert always["reason"] == ""
    assert finding.first_round[OURS] > 0
    assert len(finding.notes) == 4  # per processor second against each loop, the other loop, and stable choices


def test_bf16_is_not_timed_where_the_processor_lacks_it():
    if bfloat16_support() == "native":
        pytest.skip("this processor multiplies bfloat16")
    finding = time_rounds(BenchOptions(), W5, "ResNet", Limit("× plain loop", 1.8), precision="bf16")
    assert finding.lines[0]["met"] is None
    assert "no bfloat16" in finding.lines[0]["reason"]


def test_quick_scale_keeps_enough_participants():
    assert (W3.quick().clients, W3.quick().participants) == (10, 2)
    assert W5.quick().clients == 2
    assert W5.quick().samples == W5.samples


def test_a_missing_framework_is_named(monkeypatch):
    monkeypatch.setitem(MAKERS, FLUKE, (("no_such_framework",), MAKERS[FLUKE][1]))
    federation = MLP.federation(0)
    ours = OurRounds(MLP, federation, 0, 1)
    assert load_contender(FLUKE, MLP, federation, ours.server) == "no_such_framework not installed"


def test_processor_seconds_count_a_child_that_is_still_there():
    before = cpu_seconds()
    script = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert cpu_seconds() - before >= 0.25
        child.communicate(b"\n")
    assert cpu_seconds() - before >= 0.25


@pytest.mark.parametrize(("model", "shape"), [("mlp:hidden=9", (12,)), ("cnn-leaf", (1, 8, 8))])
def test_fedjax_does_the_same_round_on_full_batches(model, shape):
    pytest.importorskip("fedjax")
    workload = Workload(4, 7, model, shape, 3, Training(lr=0.2, epochs=2, batch_size=None))
    federation = workload.federation(3)
    ours = OurRounds(workload, federation, 3, 1)
    theirs = load_contender(FEDJAX, workload, federation, ours.server)
    assert isinstance(theirs, FedjaxRounds)
    ours.round(1)
    weights = [torch.tensor(np.asarray(layer[key])) for layer in theirs.state.params for key in ("w", "b")]
    order = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
    flat = torch.cat([w.permute(order[w.ndim]).reshape(-1) for w in weights])
    assert torch.allclose(flat, ours.state.model.float(), atol=1e-6)


def test_pfl_does_the_same_round_on_full_batches():
    pytest.importorskip("pfl")
    workload = Workload(4, 7, "mlp:hidden=9", (12,), 3, Training(lr=0.2, epochs=2, batch_size=None))
    federation = workload.federation(3)
    ours = OurRounds(workload, federation, 3, 1)
    theirs = load_contender(PFL, workload, federation, ours.server)
    assert isinstance(theirs, PflRounds)
    ours.round(1)
    flat = torch.cat([p.detach().reshape(-1) for p in theirs.model.pytorch_model.parameters()])
    assert torch.allclose(flat, ours.state.model.float(), atol=1e-6)


def test_a_network_that_is_no_chain_of_layers_is_not_measured_on_fedjax():
    with pytest.raises(TypeError, match="only chains"):
        chain_of(WORKLOADS["tokens"].architecture()(0))
    assert len(chain_of(W4.architecture()(0))) == 10
