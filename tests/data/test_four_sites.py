"""Digits of four origins, from small files in the published formats: one image size, and the origin as the group."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from published_files import write_idx_set
from scipy.io import savemat

import coterie
from coterie.data.scenarios import find_scenario
from coterie.data.sources import load_source
from coterie.errors import ConfigError, DataError

COPIES = 20
LABELS = np.arange(10 * COPIES) % 10


def write_four(folder: Path, codes: bool = False, held: bool = False) -> None:
    """Digit d of USPS has a left half of brightness 25 d, of optdigits a grey of d, of semeion d rows of ones."""
    write_idx_set(folder / "MNIST/raw")
    place = folder / "digits-4"
    place.mkdir(exist_ok=True)
    pixels = np.zeros((len(LABELS), 16, 16), np.uint8)
    pixels[:, :, :8] = 25 * LABELS[:, None, None]
    savemat(place / "USPS.mat", {"fea": pixels.reshape(-1, 256), "gnd": (LABELS + 1)[:, None].astype(np.uint8)})
    rows = []
    for label in LABELS:
        image = ["1" if row < label else "0" for row in range(16) for _ in range(16)]
        unit = ["1" if digit == label else "0" for digit in range(10)]
        rows.append("\t".join([*image, *unit, *(["".join(unit)] if codes else [])]))
    (place / "semeion.data").write_text("\n".join(rows) + "\n")
    grey = "\n".join(",".join([str(label)] * 65) for label in LABELS) + "\n"
    for part in ("tra", "tes", *(["hol"] if held else [])):
        (place / f"optdigits.{part}").write_text(
            f"# the last digit is the class code\n{grey}" if part == "tra" else grey
        )


@pytest.mark.parametrize(("codes", "held"), [(False, False), (True, True)])
def test_the_files_become_one_pool_of_one_size(tmp_path: Path, codes: bool, held: bool) -> None:
    write_four(tmp_path, codes, held)
    pool = load_source("digits-4", tmp_path)
    assert pool.x.shape[1:] == pool.x_test.shape[1:] == (1, 28, 28)
    assert pool.writer is not None
    assert pool.writer_test is not None
    assert np.bincount(pool.writer).tolist() == [30, 160, 400 if held else 200, 160]
    assert np.bincount(pool.writer_test).tolist() == [10, 40, 200, 40]
    for site in (1, 3):  # a fifth of each class
        assert np.bincount(pool.y_test[pool.writer_test == site]).tolist() == [4] * 10
    for site, expected in (
        (1, lambda image, digit: (image[:, :13] == 25 * digit).all() and not image[:, 15:].any()),
        (2, lambda image, digit: np.abs(image - 255 / 16 * digit).max() < 0.51),
        (3, lambda image, digit: image.mean() == pytest.approx(255 * digit / 16, abs=2)),
    ):
        for image, digit in zip(pool.x[pool.writer == site, 0], pool.y[pool.writer == site], strict=True):
            assert expected(image, digit), (site, digit)


def test_the_origin_is_the_group_and_no_sample_is_dealt_twice(tmp_path: Path) -> None:
    write_four(tmp_path)
    scenario = find_scenario("digits-4")
    federation = scenario.build(clients=8, samples=12, data_dir=tmp_path)
    assert federation.groups == [0, 1, 2, 3] * 2
    assert {len(client.train) for client in federation} == {12}
    assert all(len(client.validation) and len(client.test) for client in federation)
    grey = [client for client in federation if client.group == 2]
    assert all(x.std() < 0.01 for client in grey for x in client.train.x)
    assert not any(x.std() < 0.01 for client in federation if client.group == 0 for x in client.train.x)
    assert sum(len(client.test) for client in grey) == 200
    two = scenario.build(clients=4, groups=2, samples=12, data_dir=tmp_path)
    assert two.groups == [0, 1, 0, 1]
    with pytest.raises(ConfigError, match="groups=5: digits-4 has 4 sites"):
        scenario.build(clients=10, groups=5, samples=5, data_dir=tmp_path)
    options = {"clients": 4, "samples": 12, "rounds": 1, "workers": 1, "data_dir": str(tmp_path)}
    assert coterie.run("fedavg", scenario="digits-4", **options).summary.scenario == "digits-4"


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"'digits-4' is not in .* is missing: run `coterie data fetch mnist`.*USPS\.mat"
    ):
        load_source("digits-4", tmp_path)
    write_four(tmp_path)
    place = tmp_path / "digits-4"
    for name, content, why in (
        ("optdigits.tra", "1,2,3\n", "not rows of 65 numbers"),
        ("optdigits.tra", ",".join(["17"] * 65), "values outside 0..16"),
        ("semeion.data", "1 " * 266, "ten bits of which one is set"),
        ("semeion.data", "one two", "not rows of 266 numbers"),
    ):
        before = (place / name).read_text()
        (place / name).write_text(content)
        with pytest.raises(DataError, match=f"{name}: .*{why}"):
            load_source("digits-4", tmp_path)
        (place / name).write_text(before)
    savemat(place / "USPS.mat", {"fea": np.zeros((3, 100), np.uint8), "gnd": np.ones((3, 1), np.uint8)})
    with pytest.raises(DataError, match=r"USPS\.mat: fea is uint8 \(3, 100\), expected uint8 \(3, 256\)"):
        load_source("digits-4", tmp_path)
    savemat(place / "USPS.mat", {"other": np.zeros(3)})
    with pytest.raises(DataError, match=r"USPS\.mat: not a MATLAB file with fea, gnd"):
        load_source("digits-4", tmp_path)
