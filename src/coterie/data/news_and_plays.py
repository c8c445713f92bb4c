"""How the files of each text set become a pool of token ids: words of news items, characters of plays."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

from coterie.data.formats import Files, damaged, read_news_csv, read_text
from coterie.data.pools import IntArray, TextPool
from coterie.errors import DataError

TOPICS = ("World", "Sports", "Business", "Sci/Tech")
PLAY_TEST_SHARE = 0.2
UNKNOWN, END = "<unk>", "<eos>"

_TAG = re.compile(r"<[^<>]*>")
_BROKEN_ENTITY = re.compile(r"(?:\s|&)?#(\d+);")  # AG-News lost the & of most entities: "Messier #39;s lawyer"
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*|\d+|[.,!?;:$%]")
_SPEAKER = re.compile(r"[A-Z][^\n]{0,60}:")


def load_ag_news(files: Files, vocabulary_size: int) -> TextPool:
    """News items by word; the vocabulary is that of the training part."""
    if vocabulary_size < 3:
        raise DataError(f"a vocabulary of {vocabulary_size} has no room for a word: ask for at least 3")
    (train, topic), (test, topic_test) = (read_news_csv(path, len(TOPICS)) for (path,) in files)
    rows, rows_test = [words(text) for text in train], [words(text) for text in test]
    vocabulary = word_vocabulary(rows, vocabulary_size)
    return TextPool(
        "ag-news",
        encode_words(rows, vocabulary),
        topic,
        encode_words(rows_test, vocabulary),
        topic_test,
        TOPICS,
        vocabulary,
    )


def load_shakespeare(files: Files, vocabulary_size: int) -> TextPool:
    """Each speaker's lines by character: the first four fifths train, the rest, which comes later in the play, tests.

    There are fewer characters than any sensible `vocabulary_size`; one that is too small is an error.
    """
    path = files[0][0]
    spoken = speeches(read_text(path))
    if not spoken:
        raise damaged(path, "no speaker's name on a line of its own, ended by a colon")
    cut = {name: round((1 - PLAY_TEST_SHARE) * len(text)) for name, text in spoken.items()}
    vocabulary = character_vocabulary(text[: cut[name]] for name, text in spoken.items())
    if len(vocabulary) > vocabulary_size:
        raise DataError(f"{path}: {len(vocabulary)} characters do not fit a vocabulary of {vocabulary_size}: raise it")
    key = np.arange(len(spoken), dtype=np.int64)
    return TextPool(
        "shakespeare",
        tuple(encode_characters(text[: cut[name]], vocabulary) for name, text in spoken.items()),
        key,
        tuple(encode_characters(text[cut[name] :], vocabulary) for name, text in spoken.items()),
        key.copy(),
        tuple(spoken),
        vocabulary,
    )


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
