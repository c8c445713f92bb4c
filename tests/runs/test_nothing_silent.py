"""What a person would not have meant is an error or a warning, never another result without a word."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie import Federation
from coterie.errors import ConfigError, DataError, ModelError, RunError
from coterie.methods import make_method
from coterie.runs.folder import RunFolder

SMALL: dict[str, Any] = {"scenario": "xor", "clients": 4, "samples": 10, "rounds": 2, "workers": 1}


class Own(nn.Module):
    """A linear model that does something on the side."""

    def __init__(self, side: str) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.side = side
        self.calls = 0

    def reset_parameters(self) -> None: ...

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.side == "in place":
            x.mul_(0.5)
        if self.training and self.side == "exit":
            sys.exit(0)
        if self.training and self.side == "error":
            raise KeyError("of the model's own")
        factor = {"state": 1 + 0.1 * self.calls, "numpy": 1 + np.random.rand()}.get(self.side, 1.0)
        outputs: Tensor = self.layer(x) * factor
        return outputs


@pytest.mark.parametrize("key", ["data", "scenario", "model", "method", "out", "data_dir", "memory", "device"])
@pytest.mark.parametrize("text", ["", " "])
def test_empty_text_is_not_the_default(key: str, text: str) -> None:
    options = {"rounds": 1, "clients": 4} | {key: text}
    with pytest.raises(ConfigError, match=f"{key}='{text}'.*not empty: leave {key} out"):
        coterie.run(**options)


@pytest.mark.parametrize(("key", "value"), [("clients", 10**20), ("groups", 10**9), ("workers", 10**5)])
def test_numbers_that_nobody_means_are_refused_at_once(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{key}={value}: expected whole number from 1 to"):
        coterie.run(**SMALL | {key: value})


@pytest.mark.parametrize("spec", ["ifca:restarts=1000000", "ifca:init=k-means++(1000000)", "oneshot:n_init=1000000"])
def test_more_repetitions_than_anybody_waits_for(spec: str) -> None:
    with pytest.raises(ConfigError, match="=1000000: expected whole number from 1 to 1000"):
        make_method(spec)


@pytest.mark.parametrize(("x", "y"), [((10, 0), (10,)), ((10, 3), (10, 0))])
@pytest.mark.parametrize("memory_bytes", [None, 4])
def test_samples_without_numbers_are_refused(
    x: tuple[int, ...], y: tuple[int, ...], memory_bytes: int | None, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(x, np.float32), y=np.ones(y, int))
    with pytest.raises(DataError, match=r"client 'a': its .* have shape .*: give at least one number per sample"):
        Federation.from_folder(tmp_path, memory_bytes=memory_bytes)


def test_damaged_headers_of_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((10, 3), np.float32), y=np.arange(10) % 2)
    np.save(tmp_path / "b.x.npy", np.ones((10, 3), np.float32))
    np.save(tmp_path / "b.y.npy", np.arange(10) % 2)
    (tmp_path / "b.x.npy").write_bytes((tmp_path / "b.x.npy").read_bytes().replace(b"}", b" "))
    with pytest.raises(DataError, match=r"b\.x\.npy: not a readable \.npy file"):
        Federation.from_folder(tmp_path)


def test_an_option_given_twice() -> None:
    with pytest.raises(ConfigError, match="option 'k' is given twice: keep one"):
        make_method("ifca:k=2,k=3")


@pytest.mark.parametrize("text", ["ifca:k=" + "(" * 5000, "ifca:k=" + "-" * 50_000 + "1"])
def test_an_option_nested_too_deeply(text: str) -> None:
    with pytest.raises(ConfigError, match="expected whole number"):
        make_method(text)


@pytest.mark.parametrize("value", [float("inf"), True, "1e999"])
def test_numbers_of_a_method_are_finite_and_no_truth_values(value: object) -> None:
    with pytest.raises(ConfigError, match=r"option server_lr=.*: expected number above 0"):
        make_method(f"fedavg:server_lr={value}")


def test_labels_as_floats_are_said_to_be_a_regression() -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 3
    with pytest.warns(UserWarning, match="whole numbers stored as floats, so this is a regression"):
        Federation.from_tensors({"a": (x, y.float())})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Federation.from_tensors({"a": (x, y)})
        Federation.from_tensors({"a": (x, y + 0.5)})


def test_uint8_beside_float32_is_refused() -> None:
    images, reals, y = np.ones((20, 3), np.uint8), np.ones((20, 3), np.float32), np.arange(20) % 2
    for first, second in ((images, reals), (reals, images)):
        with pytest.raises(DataError, match=r"client '[ab]' has uint8 inputs, .* client '[ab]' has not"):
            Federation.from_tensors({"a": (first, y), "b": (second, y)})
    with pytest.raises(DataError, match="client 'a': of train and test one came as uint8"):
        Federation.from_tensors({"a": {"train": (images, y), "test": (reals, y)}})
    assert Federation.from_tensors({"a": (images, y), "b": (images, y)}).clients[0].train.x.max() < 0.01


def test_a_model_callable_that_ends_the_program_is_an_error() -> None:
    with pytest.raises(ConfigError, match="raised SystemExit: 0"):
        coterie.run(**SMALL, model=lambda: sys.exit(0))
    with pytest.raises(ConfigError, match="raised KeyError: 'mine'"):
        coterie.run(**SMALL, model=lambda: {}["mine"])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("side", "word"), [("exit", "SystemExit: 0"), ("error", 'KeyError: "of the model\'s own"')])
def test_a_model_that_fails_in_training_names_the_client(side: str, word: str, workers: int) -> None:
    with pytest.raises(ModelError, match=f"client '.*': the model raised {word}"):
        coterie.run(**SMALL | {"workers": workers}, model=Own(side))


def test_a_model_that_changes_its_inputs_is_refused_and_the_data_stays() -> None:
    x = torch.randn(20, 2)
    before = x.clone()
    federation = Federation.from_tensors({"a": (x, torch.arange(20) % 2)}, splits=(1, 0, 0))
    with pytest.raises(ConfigError, match="the model changes its inputs in place"):
        coterie.run("fedavg", federation, model=Own("in place"), rounds=1)
    assert torch.equal(x, before)


@pytest.mark.parametrize("side", ["state", "numpy"])
def test_a_model_with_two_results_for_one_job_is_named_once(side: str) -> None:
    with pytest.warns(UserWarning, match="two results for the same job") as caught:
        coterie.run(**SMALL, model=Own(side))
    assert len([w for w in caught if "two results" in str(w.message)]) == 1


def test_a_model_with_dropout_repeats() -> None:
    class Dropping(Own):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(nn.functional.dropout(x, 0.5, self.training))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        coterie.run(**SMALL, model=Dropping("nothing"))


def test_whole_numbers_that_float32_cannot_hold_are_refused() -> None:
    model = Own("nothing")
    model.register_buffer("count", torch.tensor(2**24 + 1))
    with pytest.raises(ConfigError, match="buffer 'count' holds whole numbers that float32 cannot hold exactly"):
        coterie.run(**SMALL, model=model)
    result = coterie.run(**SMALL, model=model, precision="float64")
    assert int(result.model_of(result.clients[0].client).get_buffer("count")) == 2**24 + 1


def test_a_loss_that_explodes_is_said_once_and_in_the_summary(tmp_path: Path) -> None:
    options = SMALL | {"model": "logistic", "lr": 1e6, "rounds": 3}
    result = coterie.run(**options, out=tmp_path / "run")
    events = [event for record in result.history for event in record.events if event.kind == "exploding loss"]
    assert len(events) == 1
    assert "lower the learning rate" in events[0].text
    assert result.summary.warnings == [f"round 1: {events[0].text}"]
    assert RunFolder(tmp_path / "run").summary() == result.summary
    assert coterie.run(**options | {"lr": 0.1}).summary.warnings == []


def test_a_disk_that_is_full_names_the_file_and_the_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = coterie.run(**SMALL, out=tmp_path / "whole")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"config\.json: cannot be written \(No space left on device\)"):
            coterie.run(**SMALL, out=tmp_path / "run")
        patched.undo()
        folder = RunFolder.create(tmp_path / "run", RunFolder(tmp_path / "whole").config())
        folder.close()
        patched.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="cannot be written"):
            coterie.resume(tmp_path / "run")
    assert coterie.resume(tmp_path / "run").clusters == expected.clusters


def test_a_file_is_not_written_over_a_device(tmp_path: Path) -> None:
    from coterie.snapshot import write_atomically

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="pipe: not a regular file"):
        write_atomically(tmp_path / "pipe", b"x")
    assert not (tmp_path / "pipe").is_file()
