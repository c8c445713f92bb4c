"""How the files of each image set become a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from coterie.data.formats import (
    Files,
    damaged,
    read_cifar_binary,
    read_cifar_pickle,
    read_idx,
    read_leaf_json,
    read_mat,
    read_numbers,
)
from coterie.data.pools import IntArray, Pool
from coterie.randomness import numpy_generator

Labelled = tuple[npt.NDArray[np.uint8], IntArray]

DIGITS_TEST_SHARE = 0.2
# Per-channel mean and standard deviation of the training images, of pixels in [0, 1].
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def _shipped(name: str, file: str, header: int = 0) -> npt.NDArray[np.float64]:
    """A set as scikit-learn ships it: a row per sample, the label last, below some lines of header."""
    package = find_spec("sklearn")
    for place in package.submodule_search_locations or () if package is not None else ():
        path = Path(place, "datasets", "data", file)
        if path.is_file():
            # Read here, because importing scikit-learn takes longer than the rest of a small run.
            return np.loadtxt(path, delimiter=",", skiprows=header)
    from sklearn import datasets

    raw = getattr(datasets, f"load_{name}")()
    return np.column_stack([raw.data, raw.target])


def load_digits_pool(files: Files) -> Pool:
    """The 8x8 digits as (n, 1, 8, 8) float32 in [0, 1]; a fifth of each class, always the same, is the test part."""
    rows = _shipped("digits", "digits.csv.gz")  # 64 pixels from 0 to 16
    x = (rows[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)[:, None]
    y = rows[:, -1].astype(np.int64)
    test = _test_fifth(y, "digits-test")
    return Pool("digits", x[~test], y[~test], x[test], y[test], 10)


def load_breast_cancer(files: Files) -> Pool:
    """The 30 numbers of 569 patients as (n, 1, 1, 30) float32, each with mean zero and deviation one over the training
    part; a fifth of each class, always the same, is the test part."""
    rows = _shipped("breast_cancer", "breast_cancer.csv", header=1)
    y = rows[:, -1].astype(np.int64)
    test = _test_fifth(y, "breast-cancer-test")
    mean, std = rows[~test, :-1].mean(axis=0), rows[~test, :-1].std(axis=0)
    x = ((rows[:, :-1] - mean) / std).astype(np.float32)[:, None, None]
    return Pool("breast-cancer", x[~test], y[~test], x[test], y[test], 2)


def _test_fifth(y: IntArray, name: str) -> npt.NDArray[np.bool_]:
    """Which samples (n,) of a set without test part are it: a fifth of each class, always the same."""
    test = np.zeros(len(y), dtype=bool)
    for label in range(10):
        members = numpy_generator(0, name, label).permutation(np.flatnonzero(y == label))
        test[members[: round(DIGITS_TEST_SHARE * len(members))]] = True
    return test


def load_four_sites(files: Files) -> Pool:
    """MNIST, USPS, optdigits and semeion as 28x28 images, numbered 0 to 3 in this order as the pool's writers.

    After MNIST's files come USPS.mat, semeion.data, and optdigits' test and training files. MNIST and optdigits have
    test parts of their own.
    """
    mnist = load_mnist(files[:4])
    (usps,), (semeion,), *optdigits = files[4:]
    parts = [
        ((mnist.x, mnist.y), (mnist.x_test, mnist.y_test)),
        _divided("usps-test", *_read_usps(usps)),
        (_joined([_read_optdigits(path) for (path,) in optdigits[1:]]), _read_optdigits(optdigits[0][0])),
        _divided("semeion-test", *_read_semeion(semeion)),
    ]
    train, test = (_joined([part[i] for part in parts]) for i in (0, 1))
    site, site_test = (np.repeat(np.arange(len(parts)), [len(part[i][1]) for part in parts]) for i in (0, 1))
    return Pool("digits-4", *train, *test, 10, site, site_test)


def _joined(parts: Sequence[Labelled]) -> Labelled:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _divided(name: str, x: npt.NDArray[np.uint8], y: IntArray) -> tuple[Labelled, Labelled]:
    test = _test_fifth(y, name)
    return (x[~test], y[~test]), (x[test], y[test])


def _read_usps(path: Path) -> Labelled:
    """16x16 bytes as rows of `fea`, and the digit plus one as `gnd`."""
    pixels, digits = read_mat(path, ("fea", "gnd"))
    y = digits.reshape(-1).astype(np.int64) - 1
    if pixels.dtype != np.uint8 or pixels.shape != (len(y), 256):
        raise damaged(path, f"fea is {pixels.dtype} {pixels.shape}, expected uint8 ({len(y)}, 256)")
    _check_labels(path, y, 10)
    return _resized(pixels.reshape(-1, 16, 16)), y


def _read_semeion(path: Path) -> Labelled:
    """16x16 bits, and ten columns of which that of the digit is 1; some copies repeat these ten as one word."""
    codes = {f"{10**place:010d}" for place in range(10)}
    rows = read_numbers(path, 266, leave_out=codes)
    if not np.isin(rows, (0, 1)).all() or not (rows[:, 256:].sum(axis=1) == 1).all():
        raise damaged(path, "not rows of 256 bits and ten bits of which one is set")
    return _resized(255 * rows[:, :256].reshape(-1, 16, 16)), rows[:, 256:].argmax(axis=1)


def _read_optdigits(path: Path) -> Labelled:
    """8x8 counts from 0 to 16, and the digit."""
    rows = read_numbers(path, 65, separator=",")
    if not ((rows >= 0) & (rows <= 16)).all():
        raise damaged(path, "holds values outside 0..16")
    y = rows[:, -1].astype(np.int64)
    _check_labels(path, y, 10)
    return _resized(255 / 16 * rows[:, :-1].reshape(-1, 8, 8)), y


def _resized(images: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Images (n, height, width) of values from 0 to 255 as (n, 1, 28, 28), interpolated linearly."""
    scaled = interpolate(torch.from_numpy(images.astype(np.float32))[:, None], size=(28, 28), mode="bilinear")
    return scaled.round().to(torch.uint8).numpy()


def load_mnist(files: Files) -> Pool:
    """The four IDX files: training images, training labels, test images, test labels."""
    return _idx_pool("mnist", files, 10)


def load_fashion(files: Files) -> Pool:
    """Four IDX files, as MNIST's."""
    return _idx_pool("fashion-mnist", files, 10)


def load_emnist(files: Files) -> Pool:
    """Four IDX files whose images are stored column by column; they are turned upright here."""
    return _idx_pool("emnist", files, 47, transposed=True)


def load_both(files: Files) -> Pool:
    """MNIST's classes as 0..9 and Fashion-MNIST's as 10..19."""
    a, b = load_mnist(files[:4]), load_fashion(files[4:])
    train = _joined([(a.x, a.y), (b.x, b.y + 10)])
    test = _joined([(a.x_test, a.y_test), (b.x_test, b.y_test + 10)])
    return Pool("mnist+fashion", *train, *test, 20)


def load_writers(files: Files) -> Pool:
    """MNIST with the writer of each image, from QMNIST's labels: column 0 is the class, column 2 the writer.

    QMNIST's test part begins with MNIST's and goes on; the rest is not used.
    """
    pool = load_mnist(files[:4])
    writers = []
    for (path,), y in zip(files[4:], (pool.y, pool.y_test), strict=True):
        table = read_idx(path, np.int32, 2)
        if table.shape[1] != 8 or len(table) < len(y):
            raise damaged(path, f"holds a table of {table.shape}, expected at least {len(y)} rows of 8 columns")
        table = table[: len(y)]
        if not np.array_equal(table[:, 0], y):
            wrong = int((table[:, 0] != y).sum())
            raise damaged(path, f"its classes differ from MNIST's labels in {wrong} of {len(y)} rows")
        writers.append(table[:, 2].copy())
    return Pool("mnist-writers", pool.x, pool.y, pool.x_test, pool.y_test, 10, writers[0], writers[1])


def load_cifar10(files: Files) -> Pool:
    """Five training batches and a test batch, binary (.bin) or Python."""
    batches = [_cifar_batch(path, label_bytes=1, label_key="labels", classes=10) for (path,) in files]
    for (path,), (_, y) in zip(files, batches, strict=True):
        if len(y) != len(batches[0][1]):
            raise damaged(path, f"holds {len(y)} images, {files[0][0].name} holds {len(batches[0][1])}")
    x, y = (np.concatenate(part) for part in zip(*batches[:-1], strict=True))
    return Pool("cifar10", x, y, *batches[-1], 10, mean=CIFAR10_MEAN, std=CIFAR10_STD)


def load_cifar100(files: Files) -> Pool:
    """A training and a test file, binary (.bin) or Python, with the hundred fine labels."""
    train, test = (_cifar_batch(path, label_bytes=2, label_key="fine_labels", classes=100) for (path,) in files)
    return Pool("cifar100", *train, *test, 100, mean=CIFAR100_MEAN, std=CIFAR100_STD)


def load_femnist(files: Files) -> Pool:
    """LEAF's JSON files; writers are numbered in alphabetical order over both parts."""
    parts = [[(path, read_leaf_json(path)) for path in paths] for paths in files]
    names = sorted({user for part in parts for _, table in part for user in table})
    number = {user: i for i, user in enumerate(names)}
    (train, writers), (test, test_writers) = (_femnist_part(part, number) for part in parts)
    return Pool("femnist", *train, *test, 62, writers, test_writers)


def _femnist_part(
    files: Sequence[tuple[Path, Mapping[str, Labelled]]], number: Mapping[str, int]
) -> tuple[Labelled, IntArray]:
    """The samples of training or test, and the number of the writer of each."""
    rows = [(path, user, *held) for path, table in files for user, held in table.items() if len(held[1])]
    if not rows:
        raise damaged(files[0][0], "holds no samples")
    for path, _, _, y in rows:
        _check_labels(path, y, 62)
    writers = [np.full(len(y), number[user], dtype=np.int64) for _, user, _, y in rows]
    return _joined([(x, y) for _, _, x, y in rows]), np.concatenate(writers)


def _idx_pool(name: str, files: Files, classes: int, transposed: bool = False) -> Pool:
    paths = [found[0] for found in files]
    parts: list[Labelled] = []
    for image_path, label_path in (paths[:2], paths[2:]):
        x, y = read_idx(image_path, np.uint8, 3), read_idx(label_path, np.uint8, 1).astype(np.int64)
        if x.shape[1:] != (28, 28):
            raise damaged(image_path, f"its images are {x.shape[1]}x{x.shape[2]}, expected 28x28")
        if len(x) != len(y):
            raise damaged(label_path, f"holds {len(y)} labels for the {len(x)} images of {image_path.name}")
        _check_labels(label_path, y, classes)
        parts.append((np.ascontiguousarray(x.transpose(0, 2, 1) if transposed else x)[:, None], y))
    return Pool(name, *parts[0], *parts[1], classes)


def _cifar_batch(path: Path, label_bytes: int, label_key: str, classes: int) -> Labelled:
    binary = ".bin" in path.suffixes
    x, y = read_cifar_binary(path, label_bytes) if binary else read_cifar_pickle(path, label_key)
    _check_labels(path, y, classes)
    return x, y


def _check_labels(path: Path, y: IntArray, classes: int) -> None:
    if len(y) == 0:
        raise damaged(path, "holds no samples")
    if y.min() < 0 or y.max() >= classes:
        raise damaged(path, f"its labels run from {y.min()} to {y.max()}, expected 0..{classes - 1}")
