"""The watch: its file, windows, and a split in which no recording is on both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.data.scenarios import find_scenario
from coterie.data.signals import WATCH_SCALE, cut_windows
from coterie.data.sources import load_signal_source, load_source
from coterie.errors import DataError
from coterie.federation.validation import hold_out

LENGTH = 1500 + 37
"""Ten windows of 150 samples and a rest."""


def write_watch(folder: Path, people: int = 3, sides: int = 2) -> None:
    """Every sample of a recording holds the recording's number in its first channel, and its time in the second."""
    made = [(person, exercise, side) for person in range(people) for exercise in range(7) for side in range(sides)]
    signals = []
    for number, (_, exercise, _) in enumerate(made):
        time = np.arange(LENGTH)
        wave = np.sin(time * (exercise + 1) / 10)
        signals.append(np.stack([np.full(LENGTH, number), time, wave, wave, wave, wave], axis=1))
    person, exercise, side = np.array(made, dtype=np.int32).T
    (folder / "watch").mkdir(exist_ok=True)
    np.savez(
        folder / "watch/watch.npz",
        x=np.concatenate(signals).astype(np.float32),
        length=np.full(len(made), LENGTH, dtype=np.int32),
        subject=person + 1,
        exercise=exercise,
        side=side,
    )


def test_windows_follow_each_other_and_leave_the_rest_out() -> None:
    signal = np.arange(14, dtype=np.float32).reshape(2, 7)
    assert cut_windows(signal, 3).tolist() == [[[0, 1, 2], [7, 8, 9]], [[3, 4, 5], [10, 11, 12]]]


def test_no_recording_has_windows_on_both_sides(tmp_path: Path) -> None:
    write_watch(tmp_path)
    federation = find_scenario("watch").build(clients=3, seed=4, data_dir=tmp_path)
    assert federation.ids == ("person-01", "person-02", "person-03")
    assert (federation.input_shape, federation.classes, federation.groups) == ((6, 150), 7, None)
    for place, client in enumerate(federation):
        parts = {"train": client.train, "validation": client.validation, "test": client.test}
        assert {name: len(part) for name, part in parts.items()} == {"train": 60, "validation": 10, "test": 70}
        recordings = {name: recordings_of(part.x) for name, part in parts.items()}
        assert sum(map(len, recordings.values())) == 14  # none is in two parts
        assert set().union(*recordings.values()) == set(map(float, range(14 * place, 14 * place + 14)))
        assert set(client.test.y.tolist()) == set(range(7))
        for part in parts.values():
            assert ((part.x[:, 0, 0] % 14 // 2).long() == part.y).all()
    again = find_scenario("watch").build(clients=3, seed=5, data_dir=tmp_path)
    assert len({recordings_of(client.validation.x).pop() % 14 // 2 for client in again}) > 1  # drawn per person
    assert set(again["person-01"].test.x[:, 0].unique().tolist()) != recordings_of(federation["person-01"].test.x)


def recordings_of(x) -> set[float]:
    return set(x[:, 0].unique().tolist())


def test_a_fraction_holds_out_whole_recordings(tmp_path: Path) -> None:
    write_watch(tmp_path)
    federation = find_scenario("watch").build(clients=3, samples=50, seed=4, data_dir=tmp_path)
    for client in hold_out(federation, 0.3, 1):
        train, validation = recordings_of(client.train.x), recordings_of(client.validation.x)
        assert len(validation) == 3  # one before, and two of six
        assert not train & validation


def test_channels_are_scaled_by_constants(tmp_path: Path) -> None:
    write_watch(tmp_path, people=1)
    signal = load_signal_source("watch", tmp_path).signals[3]
    assert signal.shape == (6, LENGTH)
    assert WATCH_SCALE[2] * signal[2] == pytest.approx(WATCH_SCALE[5] * signal[5])
    assert signal[2] == pytest.approx(np.sin(np.arange(LENGTH) * 2 / 10), abs=1e-6)


def test_a_run_learns_from_fewer_windows(tmp_path: Path) -> None:
    write_watch(tmp_path)
    options = {"scenario": "watch", "clients": 3, "samples": 30, "data_dir": str(tmp_path), "workers": 1}
    federation = find_scenario("watch").build(clients=3, samples=30, data_dir=tmp_path)
    assert [len(client.train) for client in federation] == [30, 30, 30]
    assert coterie.run("fedavg", rounds=3, model="cnn-1d:width=4", **options).summary.model == "cnn-1d:width=4"


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"watch\.npz is missing: seglearn"):
        load_signal_source("watch", tmp_path)
    write_watch(tmp_path)
    with pytest.raises(DataError, match="clients=4: watch has 3 people"):
        find_scenario("watch").build(clients=4, data_dir=tmp_path)
    with pytest.raises(DataError, match="'watch' is tables or signals: use a scenario"):
        load_source("watch", tmp_path)
    with pytest.raises(DataError, match="'mnist' holds no signals"):
        load_signal_source("mnist", tmp_path)
    write_watch(tmp_path, sides=1)
    with pytest.raises(DataError, match="person 1 has one recording of label 0"):
        find_scenario("watch").build(clients=3, data_dir=tmp_path)
    path = tmp_path / "watch/watch.npz"
    np.savez(path, x=np.zeros((5, 6)), length=[4], subject=[1], exercise=[0], side=[0])
    with pytest.raises(DataError, match=r"x is \(5, 6\), expected \(4, 6\)"):
        load_signal_source("watch", tmp_path)
    np.savez(path, x=np.zeros((4, 6)), length=[4], subject=[1], exercise=[9], side=[0])
    with pytest.raises(DataError, match="exercise from 0 to 6"):
        load_signal_source("watch", tmp_path)
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"watch\.npz: not arrays x, length"):
        load_signal_source("watch", tmp_path)
