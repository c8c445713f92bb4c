"""From text to token ids: words of news items, characters of plays."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

UNKNOWN, END = "<unk>", "<eos>"

_TAG = re.compile(r"<[^<>]*>")
_BROKEN_ENTITY = re.compile(r"(?:\s|&)?#(\d+);")  # AG-News lost the & of most entities: "Messier #39;s lawyer"
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*|\d+|[.,!?;:$%]")
_SPEAKER = re.compile(r"[A-Z][^\n]{0,60}:")


def words(text: str) -> list[str]:
    """Lower-case words, numbers and punctuation of a news item, its HTML and broken entities cleaned away."""
    text = _BROKEN_ENTITY.sub(lambda match: html.unescape(f"&#{match[1]};"), text)
    text = _TAG.sub(" ", html.unescape(text.replace("\\", " ").replace(" quot;", ' "')))
    return _WORD.findall(text.replace("\u2019", "'").lower())


def word_vocabulary(rows: Iterable[list[str]], size: int) -> tuple[str, ...]:
    """The most frequent words, at most `size` entries in all; unknown is 0, end of text is 1, ties alphabetical."""
    counts = Counter(word for row in rows for word in row)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (UNKNOWN, END, *ranked[: size - 2])


def encode_words(rows: Iterable[list[str]], vocabulary: tuple[str, ...]) -> tuple[IntArray, ...]:
    """Token ids of each row, ended by the end-of-text token."""
    ids = {word: i for i, word in enumerate(vocabulary)}
    return tuple(np.array([*(ids.get(word, 0) for word in row), ids[END]], dtype=np.int64) for row in rows)


def character_vocabulary(texts: Iterable[str]) -> tuple[str, ...]:
    """All characters that occur, in order; unknown is 0."""
    return (UNKNOWN, *sorted(set().union(*texts)))


def encode_characters(text: str, vocabulary: tuple[str, ...]) -> IntArray:
    """Character ids of a text: (length,)."""
    ids = {character: i for i, character in enumerate(vocabulary)}
    return np.array([ids.get(character, 0) for character in text], dtype=np.int64)


def speeches(play: str) -> dict[str, str]:
    """All lines of each speaker, in order of first appearance.

    A speech is a block after an empty line whose first line is a name and a colon; a block without a name goes on
    with the speech before it.
    """
    lines: dict[str, list[str]] = {}
    speaker = ""
    for block in play.replace("\r\n", "\n").split("\n\n"):
        head, _, rest = block.strip("\n").partition("\n")
        if _SPEAKER.fullmatch(head):
            speaker, block = head[:-1], rest
        if speaker and block.strip():
            lines.setdefault(speaker, []).append(block.strip("\n") + "\n")
    return {name: "".join(parts) for name, parts in lines.items()}
