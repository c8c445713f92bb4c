"""How the files of each image set become a pool."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.data.formats import damaged, read_cifar_binary, read_cifar_pickle, read_idx, read_leaf_json
from coterie.data.pools import IntArray, Pool
from coterie.randomness import numpy_generator

Files = Sequence[Sequence[Path]]
Labelled = tuple[npt.NDArray[np.uint8], IntArray]

DIGITS_TEST_SHARE = 0.2
# Per-channel mean and standard deviation of the training images, of pixels in [0, 1].
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def _digit_rows() -> npt.NDArray[np.float64]:
    """The digits `(1797, 65)` as scikit-learn ships them: 64 pixels from 0 to 16, and the label."""
    package = find_spec("sklearn")
    for place in package.submodule_search_locations or () if package is not None else ():
        file = Path(place, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            # Read here, because importing scikit-learn takes longer than the rest of a small run.
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    raw = load_digits()
    return np.column_stack([raw.data, raw.target])


def load_digits_pool(files: Files) -> Pool:
    """The 8x8 digits as (n, 1, 8, 8) float32 in [0, 1]; a fifth of each class, always the same, is the test part."""
    rows = _digit_rows()
    x = (rows[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)[:, None]
    y = rows[:, -1].astype(np.int64)
    test = np.zeros(len(y), dtype=bool)
    for label in range(10):
        members = numpy_generator(0, "digits-test", label).permutation(np.flatnonzero(y == label))
        test[members[: round(DIGITS_TEST_SHARE * len(members))]] = True
    return Pool("digits", x[~test], y[~test], x[test], y[test], 10)


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
    return Pool(
        "mnist+fashion",
        np.concatenate([a.x, b.x]),
        np.concatenate([a.y, b.y + 10]),
        np.concatenate([a.x_test, b.x_test]),
        np.concatenate([a.y_test, b.y_test + 10]),
        20,
    )


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
    labelled: list[Labelled] = []
    writers = []
    for part in parts:
        rows = [(path, user, *held) for path, table in part for user, held in table.items() if len(held[1])]
        if not rows:
            raise damaged(part[0][0], "holds no samples")
        for path, _, _, y in rows:
            _check_labels(path, y, 62)
        labelled.append((np.concatenate([x for _, _, x, _ in rows]), np.concatenate([y for *_, y in rows])))
        writers.append(np.concatenate([np.full(len(y), number[user], dtype=np.int64) for _, user, _, y in rows]))
    return Pool("femnist", *labelled[0], *labelled[1], 62, writers[0], writers[1])


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
