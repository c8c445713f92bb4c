"""Clients from images in folders, `<client>/<class>/*.png`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import ConfigError, DataError, extra
from coterie.federation.client import PARTS, Client, Splits, check_regular, make_client

GREY = frozenset({"1", "L", "LA", "I", "I;16", "F"})
"""Pillow's modes without colour."""
Images = dict[str, list[tuple[Path, str]]]
"""A client's files with their classes, by part; all under "train" where they come undivided."""


def holds_images(folder: Path) -> bool:
    """Whether a folder has folders of clients in it and no files of data of its own."""
    return folder.is_dir() and any(entry.is_dir() for entry in folder.iterdir()) and not any(folder.glob("*.np[yz]"))


def clients_from_images(
    folder: Path,
    size: int | tuple[int, int] | None,
    colour: bool | None,
    splits: Splits,
    seed: int,
) -> tuple[list[Client], tuple[str, ...]]:
    """One client per folder of images, and the names of the classes; see `Federation.from_images`."""
    pillow = _pillow()
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: give one with a folder of images for each client and class")
    sides = _sides(size)
    endings = set(pillow.registered_extensions())
    found = {entry.name: _files(entry, endings) for entry in _folders(folder)}
    found = {client: parts for client, parts in found.items() if any(parts.values())}
    if not found:
        raise DataError(f"{folder}: no images in it: lay them out as {folder}/<client>/<class>/<image>.png")
    everything = [pair for parts in found.values() for files in parts.values() for pair in files]
    names = sorted({kind for _, kind in everything})
    if len(names) < 2:
        raise DataError(
            f"{folder}: all images are of class {names[0]!r}: lay them out as {folder}/<client>/<class>/<image>.png"
        )
    mode, shape = _common_form(pillow, [file for file, _ in everything], sides, colour)
    number = {name: i for i, name in enumerate(names)}

    def samples_of(files: Sequence[tuple[Path, str]]) -> tuple[np.ndarray, np.ndarray]:
        pixels = np.stack([_pixels(pillow, file, mode, shape) for file, _ in files])
        return pixels, np.array([number[kind] for _, kind in files])

    clients = []
    for client, parts in found.items():
        item = {part: samples_of(files) for part, files in parts.items() if files}
        clients.append(make_client(client, item, splits, seed))
    return clients, tuple(names)


def image_files(path: Path) -> list[tuple[Path, str | None]]:
    """The images at a path with their classes: one file, a folder of files, or one with a folder for each class."""
    endings = set(_pillow().registered_extensions())
    if not path.is_dir():
        return [(path, None)] if path.suffix.lower() in endings else []
    here = sorted(file for file in path.iterdir() if file.suffix.lower() in endings and not file.name.startswith("."))
    if here:
        return [(file, None) for file in here]
    return [pair for files in _files(path, endings).values() for pair in files]


def read_images(path: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, list[str] | None]:
    """The images at a path as a model takes them, uint8 `(n, channels, height, width)`, and their classes if known.

    Args:
        path: one image, a folder of images, or a folder with one for each class.
        shape: (channels, height, width), to which images are converted and resized.
    """
    files = image_files(path)
    if not files:
        raise DataError(f"{path}: no images there: give an image, or a folder of images or of classes")
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"{path}: an image, but the model takes inputs of shape {shape}: give a .npz file")
    mode, sides = "L" if shape[0] == 1 else "RGB", (shape[1], shape[2])
    for file, _ in files:
        check_regular(file)
    pixels = np.stack([_pixels(_pillow(), file, mode, sides) for file, _ in files])
    kinds = [kind for _, kind in files if kind is not None]
    return pixels, kinds or None


def _pillow() -> Any:
    with extra("images", "reading images"):
        from PIL import Image
    return Image


def _sides(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Height and width."""
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or min(sides) < 1:
        raise ConfigError(f"size={size!r}: expected a number of pixels from 1, or (height, width)")
    return sides


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path, endings: Iterable[str]) -> Images:
    """A client's files by part."""
    below = _folders(folder)
    divided = bool(below) and all(entry.name in PARTS for entry in below)
    parts = {entry.name: _folders(entry) for entry in below} if divided else {"train": below}
    return {
        part: [
            (file, kind.name)
            for kind in kinds
            for file in sorted(kind.iterdir())
            if file.suffix.lower() in endings and not file.name.startswith(".")
        ]
        for part, kinds in parts.items()
    }


def _common_form(
    pillow: Any, files: Sequence[Path], sides: tuple[int, int] | None, colour: bool | None
) -> tuple[str, tuple[int, int]]:
    """The mode and (height, width) of all images. Only the files' headers are read."""
    modes, first = set(), None
    for file in files:
        check_regular(file)
        try:
            with pillow.open(file) as image:
                modes.add(image.mode)
                shape = (image.height, image.width)
        except Exception as problem:  # Pillow's readers raise errors of many types for damaged files
            raise DataError(f"{file}: not a readable image ({problem})") from problem
        first = first or (file, shape)
        if sides is None and shape != first[1]:
            raise DataError(
                f"{file}: {shape[0]}×{shape[1]} pixels, but {first[0]} has {first[1][0]}×{first[1][1]}: give "
                "--image-size, to which all are resized (Python: size=…)"
            )
    if first is None:
        raise DataError("no images were given")
    coloured = not modes <= GREY if colour is None else colour
    return "RGB" if coloured else "L", sides or first[1]


def _pixels(pillow: Any, file: Path, mode: str, shape: tuple[int, int]) -> np.ndarray:
    """An image `(channels, height, width) uint8`."""
    try:
        with pillow.open(file) as image:
            if image.mode in ("I", "I;16", "F") and mode == "L":
                raise DataError(f"{file}: has more than 256 levels of grey: save it with 8 bits per pixel")
            image = image.convert(mode)
            if (image.height, image.width) != shape:
                image = image.resize((shape[1], shape[0]), pillow.Resampling.BILINEAR)
            pixels = np.asarray(image, dtype=np.uint8)
    except DataError:
        raise
    except Exception as problem:  # as above
        raise DataError(f"{file}: not a readable image ({problem})") from problem
    return pixels[None] if mode == "L" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
