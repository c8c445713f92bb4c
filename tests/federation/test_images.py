"""Federations from images in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie import CoterieError, Federation

Image = pytest.importorskip("PIL.Image", reason="needs coterie[images]")


def write(folder: Path, *, mode: str = "L", size: tuple[int, int] = (6, 4), count: int = 5) -> Path:
    for client, level in (("ann", 0), ("bob", 100)):
        for kind in ("cat", "dog"):
            place = folder / client / kind
            place.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                colour: Any = level + i if mode == "L" else (level + i, 0, 255)
                Image.new(mode, size, colour).save(place / f"{i}.png")
    return folder


def test_grey_and_coloured_images(tmp_path: Path) -> None:
    federation = Federation.from_images(write(tmp_path / "grey"), splits=(1, 0, 0))
    assert federation.ids == ("ann", "bob")
    assert federation.input_shape == (1, 4, 6)
    assert federation.label_names == ("cat", "dog")
    assert federation["bob"].train.x[:, 0, 0, 0].mul(255).round().tolist() == [100, 101, 102, 103, 104] * 2
    assert federation["bob"].train.y.tolist() == [0] * 5 + [1] * 5
    coloured = Federation.from_images(write(tmp_path / "colour", mode="RGB"), size=(2, 3))
    assert coloured.input_shape == (3, 2, 3)
    assert coloured["ann"].train.x[:, 2].eq(1).all()
    assert Federation.from_images(tmp_path / "colour", colour=False, size=8).input_shape == (1, 8, 8)


def test_images_that_come_divided_stay_so(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for kind in ("cat", "dog"):
            place = tmp_path / "ann" / part / kind
            place.mkdir(parents=True)
            Image.new("L", (2, 2), 255 if part == "test" else 0).save(place / "a.png")
    federation = Federation.from_images(tmp_path)
    assert len(federation["ann"].train) == len(federation["ann"].test) == 2
    assert federation["ann"].test.x.eq(1).all()


def test_images_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def refusal(**options: Any) -> str:
        with pytest.raises(CoterieError) as caught:
            Federation.from_images(tmp_path, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no images in it: lay them out as" in refusal()
    write(tmp_path, count=2)
    Image.new("L", (9, 4)).save(tmp_path / "bob" / "dog" / "z.png")
    assert "z.png: 4×9 pixels, but" in refusal()
    assert "--image-size" in refusal()
    assert "expected a number of pixels" in refusal(size=0)
    (tmp_path / "bob" / "dog" / "z.png").write_bytes(b"no image")
    assert "z.png: not a readable image" in refusal(size=4)
    for kind in ("ann", "bob"):
        for file in (tmp_path / kind / "dog").iterdir():
            file.unlink()
    assert "all images are of class 'cat'" in refusal()
