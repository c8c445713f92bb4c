"""Replies of an unmodified app that are broken or wicked: none enters an average, and none stops a run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dropin_trials import ALL_AT_ONCE, flat, grid_of, started
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from coterie.errors import RunError
from coterie.flower import CFL, FedCUAU, FedSEM, OneShot
from coterie.flower.strategy_base import Clustered


def changed(change: Callable[[RecordDict], Any]) -> Callable[[Message], Message]:
    def apply(message: Message) -> Message:
        if message.has_content():  # an app that answers no checks sends an error when it is asked for one
            change(message.content)
        return message

    return apply


def replaced(name: str, make: Callable[[np.ndarray], Array]) -> Callable[[Message], Message]:
    return changed(lambda content: content["arrays"].update({name: make(content["arrays"][name].numpy())}))


def garbled(data: bytes) -> Callable[[np.ndarray], Array]:
    return lambda values: Array("float32", values.shape, "numpy.ndarray", data)


def spoilt(values: np.ndarray, number: float) -> Array:
    copy = values.copy()
    copy.flat[0] = number
    return Array(copy)


def of_shape(shape: str) -> bytes:
    """An array of ten zeros whose header says otherwise."""
    return Array(np.zeros(10, np.float32)).data.replace(b"(10,)", shape.encode())


METRICS = {"train_loss": 1.0, "num-examples": 10}
ATTACKS: dict[str, tuple[Callable[[Message], Message | None], str]] = {
    "nan": (replaced("fc2.bias", lambda v: spoilt(v, math.nan)), "NaN or Inf"),
    "inf": (replaced("fc1.weight", lambda v: spoilt(v, -math.inf)), "NaN or Inf"),
    "huge": (replaced("fc2.bias", lambda v: spoilt(v, 3e38)), "too large"),
    "shape": (replaced("fc2.bias", lambda v: Array(v[:-1])), r"float32 \(9,\), expected float32 \(10,\)"),
    "transposed": (replaced("fc2.weight", lambda v: Array(v.T.copy())), r"\(32, 10\), expected"),
    "dtype": (replaced("fc2.bias", lambda v: Array(v.astype(np.float64))), "float64"),
    "text": (replaced("fc2.bias", lambda v: Array(np.array(["x"] * 10))), "<U1"),
    "oversized": (replaced("fc2.bias", garbled(b"\x93NUMPY\x01\x00" + bytes(10**6))), "1000008 bytes"),
    "garbage": (replaced("fc2.bias", garbled(b"\xff" * 120)), "NumPy's format"),
    "empty": (replaced("fc2.bias", garbled(b"")), "0 bytes"),
    "lying header": (replaced("fc2.bias", garbled(of_shape("(9999999999,)"))), "something else than it says"),
    "lying width": (replaced("fc2.bias", garbled(of_shape("(11,)"))), "something else than it says"),
    "missing": (changed(lambda c: c["arrays"].pop("fc1.bias")), "no array 'fc1.bias'"),
    "renamed": (changed(lambda c: c["arrays"].update({"fc9.bias": c["arrays"].pop("fc1.bias")})), "'fc9.bias'"),
    "no arrays": (changed(lambda c: c.pop("arrays")), "0 ArrayRecords"),
    "two arrays": (changed(lambda c: c.update({"more": ArrayRecord()})), "2 ArrayRecords"),
    "no metrics": (changed(lambda c: c.pop("metrics")), "0 MetricRecords"),
    "no weight": (changed(lambda c: c["metrics"].pop("num-examples")), "'num-examples' is None"),
    "no samples": (changed(lambda c: c.update({"metrics": MetricRecord({**METRICS, "num-examples": 0})})), "is 0"),
    "nan weight": (changed(lambda c: c.update({"metrics": MetricRecord({"num-examples": math.nan})})), "is nan"),
    "listed weight": (changed(lambda c: c.update({"metrics": MetricRecord({"num-examples": [1]})})), r"is \[1\]"),
    "error": (lambda m: Message(Error(8, "the app\ncrashed"), reply_to=m), "crashed"),
    "lost": (lambda m: None, "did not answer within 0.2 s"),
}


@pytest.fixture(scope="module")
def without_the_third() -> np.ndarray:
    """What two honest nodes of three make of the model."""
    grid = grid_of(3, 1, batch=ALL_AT_ONCE)
    grid.leave(1003)
    return flat(started(Clustered(), grid, 1).arrays)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_unsound_reply_never_enters_an_average_and_never_stops_the_run(
    attack: str, without_the_third: np.ndarray
) -> None:
    spoil, reason = ATTACKS[attack]

    def tamper(reply: Message) -> Message | None:
        evil = reply.metadata.src_node_id == 1003 and reply.metadata.message_type == "train"
        return spoil(reply) if evil else reply

    strategy = Clustered(fraction_evaluate=0)
    result = started(
        strategy, grid_of(3, 1, batch=ALL_AT_ONCE, tamper=tamper), 1, timeout=0.2 if attack == "lost" else 60
    )
    np.testing.assert_allclose(flat(result.arrays), without_the_third, rtol=1e-4, atol=1e-6)
    (fault,) = strategy.history[0].faults
    assert fault.client == "1003"
    assert "\n" not in fault.reason
    assert re.search(reason, fault.reason)


def test_a_node_that_always_fails_does_not_keep_the_others_from_their_clusters() -> None:
    failing = changed(lambda content: content.pop("metrics"))
    grid = grid_of(7, 2, tamper=lambda reply: failing(reply) if reply.metadata.src_node_id == 1007 else reply)
    strategy = CFL(rule="paper(eps1=100,eps2=1e-9,gamma_max=0.6,wait=2)", fraction_evaluate=0)
    started(strategy, grid, 5)
    assert sorted(sorted(members) for members in strategy.clusters) == [[1001, 1003, 1005], [1002, 1004, 1006]]
    reasons = [[fault.reason[:7] for fault in record.faults] for record in strategy.history]
    assert reasons == [["it sent"]] * 3 + [["nothing"], []]


@pytest.mark.parametrize("strategy", [CFL(), FedSEM(clusters=2), OneShot(warmup_rounds=2), FedCUAU()])
def test_a_run_in_which_nobody_answers_soundly_ends_with_the_reason(strategy: Clustered) -> None:
    grid = grid_of(4, 2, tamper=changed(lambda content: content["metrics"].pop("num-examples")))
    with pytest.raises(RunError):
        started(strategy, grid, 3)
