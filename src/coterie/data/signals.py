"""Recordings of several channels over time, by person: how the watch's file is read and cut into windows."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.data.formats import Files, damaged, read_bytes

IntArray = npt.NDArray[np.int64]

WATCH_FIELDS = ("length", "subject", "exercise", "side")
WATCH_EXERCISES = 7
WATCH_SCALE = (1.0, 1.0, 1.0, 2.0, 2.0, 2.0)
"""What the six channels are divided by: acceleration stays in g, turning is in units of 2 rad/s. Fixed, so that no
client's statistics are needed."""


@dataclass(frozen=True, eq=False)
class Recordings:
    """Labelled signals, each by one person."""

    signals: tuple[npt.NDArray[np.float32], ...]
    """Each (channels, samples), scaled."""
    person: IntArray
    """Who each recording is of: (recordings,)."""
    label: IntArray
    """What is done in it: (recordings,), in 0..classes-1."""
    classes: int


def load_watch(files: Files) -> Recordings:
    """Shoulder exercises under a six-axis watch at 50 Hz: ten people, seven exercises, left and right arm."""
    path = files[0][0]
    try:
        with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as held:
            x, (length, person, exercise, _) = held["x"], (held[name] for name in WATCH_FIELDS)
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as problem:
        raise damaged(path, f"not arrays x, {', '.join(WATCH_FIELDS)} ({problem})") from problem
    if x.ndim != 2 or x.shape[1] != len(WATCH_SCALE) or int(length.sum()) != len(x):
        raise damaged(
            path, f"x is {x.shape}, expected ({int(length.sum())}, {len(WATCH_SCALE)}), all recordings' samples"
        )
    if not len(length) == len(person) == len(exercise) or min(exercise) < 0 or max(exercise) >= WATCH_EXERCISES:
        raise damaged(path, f"not a person and an exercise from 0 to {WATCH_EXERCISES - 1} for each recording")
    scaled = (x / np.asarray(WATCH_SCALE)).astype(np.float32).T
    cut = np.split(scaled, np.cumsum(length)[:-1], axis=1)
    return Recordings(tuple(cut), person.astype(np.int64), exercise.astype(np.int64), WATCH_EXERCISES)


def cut_windows(signal: npt.NDArray[np.float32], length: int) -> npt.NDArray[np.float32]:
    """Windows (n, channels, length) of a signal (channels, samples), one after another; the rest is left out."""
    count = signal.shape[1] // length
    return signal[:, : count * length].reshape(len(signal), count, length).transpose(1, 0, 2).copy()
