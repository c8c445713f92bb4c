"""Labels as they are given: counted from 0 where they were not, with their names kept."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from coterie import Federation
from coterie.errors import ConfigError, DataError

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


def labelled(values: list[Any], dtype: Any = None) -> np.ndarray:
    return np.array([values[i % len(values)] for i in range(20)], dtype)


@pytest.mark.parametrize(
    ("y", "names", "first"),
    [
        (labelled([0, 1]), None, [0, 1]),
        (labelled([0, 3]), None, [0, 3]),
        (labelled([1, 2]), ("1", "2"), [0, 1]),
        (labelled([2, 5, 9]), ("2", "5", "9"), [0, 1, 2]),
        (labelled([1, -1]), ("-1", "1"), [1, 0]),
        (labelled([0.0, 1.0]), ("0", "1"), [0, 1]),
        (labelled([True, False]), ("False", "True"), [1, 0]),
        (labelled(["dog", "cat"]), ("cat", "dog"), [1, 0]),
        (labelled(["dog", "cat"], object), ("cat", "dog"), [1, 0]),
        (labelled(["10", "9"]), ("9", "10"), [1, 0]),
    ],
)
def test_every_door_counts_from_0_and_keeps_the_names(
    tmp_path: Path, y: np.ndarray, names: tuple[str, ...] | None, first: list[int]
) -> None:
    whole = (1.0, 0.0, 0.0)
    made = [
        Federation.from_tensors({"a": (X, y), "b": (X, y)}, splits=whole),
        Federation.from_tensors({"a": {"train": (X, y), "test": (X, y)}}),
        Federation.from_arrays(np.concatenate([X, X]), np.concatenate([y, y]), np.repeat(["a", "b"], 20), splits=whole),
        Federation.from_datasets({"a": list(zip(X, y.tolist(), strict=True))}, splits=whole),  # type: ignore[dict-item]
    ]
    if y.dtype != object and y.dtype != bool:
        np.savez(tmp_path / "a.npz", x=X, y=y)
        np.savez(tmp_path / "b.npz", x=X, y=y)
        made.append(Federation.from_folder(tmp_path, splits=whole))
    for federation in made:
        assert federation.label_names == names
        assert federation.classes == max(first) + 1
        assert federation["a"].train.y[: len(first)].tolist() == first
        assert federation.subset(["a"]).label_names == names


def test_what_a_class_is_depends_on_all_clients() -> None:
    federation = Federation.from_tensors({"a": (X, labelled([1, 2])), "b": (X, labelled([2, 3]))}, splits=(1, 0, 0))
    assert federation.label_names == ("1", "2", "3")
    assert federation["b"].train.y[:2].tolist() == [1, 2]
    zero = Federation.from_tensors({"a": (X, labelled([1, 2])), "b": (X, labelled([0, 1]))}, splits=(1, 0, 0))
    assert zero.label_names is None
    assert zero["a"].train.y[:2].tolist() == [1, 2]


def test_floats_stay_quantities_where_that_is_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federation = Federation.from_tensors({"a": (X, labelled([0.0, 1.0]))}, task="regression")
        assert federation.regression
        assert federation["a"].train.y.dtype == torch.float32
        assert Federation.from_tensors({"a": (X, labelled([1, 2]))}, task="regression").classes == 0
        counted = Federation.from_tensors({"a": (X, labelled([0.0, 1.0, 2.0]))}, task="classification")
        assert counted.label_names == ("0", "1", "2")
    with pytest.raises(DataError, match="not whole numbers"):
        Federation.from_tensors({"a": (X, labelled([0.5, 1.0]))}, task="classification")
    with pytest.raises(ConfigError, match="expected classification or regression"):
        Federation.from_tensors({"a": (X, labelled([0, 1]))}, task="ranking")  # type: ignore[arg-type]


def test_known_names_decide_what_a_newcomers_labels_mean(tmp_path: Path) -> None:
    for y, expected in ((labelled([2]), 1), (labelled(["2"]), 1), (labelled([2.0]), 1)):
        federation = Federation.from_tensors({"new": (X, y)}, label_names=("1", "2", "3"), splits=(1, 0, 0))
        assert federation["new"].train.y.unique().tolist() == [expected]
        assert federation.classes == 3
    np.savez(tmp_path / "new.npz", x=X, y=labelled([3]))
    assert Federation.from_folder(tmp_path, label_names=("1", "2", "3"))["new"].train.y.unique().tolist() == [2]
    with pytest.raises(DataError, match="label '4' is none of '1', '2'"):
        Federation.from_tensors({"new": (X, labelled([4]))}, label_names=("1", "2"))


def test_texts_and_numbers_do_not_mix() -> None:
    with pytest.raises(DataError, match="its labels are numbers, other clients' are texts"):
        Federation.from_tensors({"a": (X, labelled(["x", "y"])), "b": (X, labelled([0, 1]))})


def test_targets_of_several_numbers_are_left_alone() -> None:
    tokens = torch.arange(1, 41).reshape(20, 2)
    federation = Federation.from_tensors({"a": (X, tokens)})
    assert federation.label_names is None
    assert federation.classes == 41


class Photos(Dataset[Any]):
    """Images of Pillow with a text as label, as torchvision gives them without a transform."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        image = pytest.importorskip("PIL.Image")
        return image.new("RGB", (4, 6), (i, 0, 0)), ["cat", "dog"][i % 2]


def test_data_sets_of_tensors_and_of_images() -> None:
    tensors = TensorDataset(torch.randn(20, 3), torch.arange(20) % 2 + 1)
    federation = Federation.from_datasets([tensors, tensors])
    assert federation.label_names == ("1", "2")
    photos = Federation.from_datasets({"a": Photos()}, splits=(1, 0, 0))
    assert photos.input_shape == (3, 6, 4)
    assert photos.label_names == ("cat", "dog")
    assert photos["a"].train.x[5, 0, 0, 0].item() == pytest.approx(5 / 255)
