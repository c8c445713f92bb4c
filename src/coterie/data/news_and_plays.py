"""How the files of each text set become a pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie.data.formats import damaged, read_news_csv, read_text
from coterie.data.pools import TextPool
from coterie.data.text import (
    character_vocabulary,
    encode_characters,
    encode_words,
    speeches,
    word_vocabulary,
    words,
)
from coterie.errors import DataError

Files = Sequence[Sequence[Path]]

TOPICS = ("World", "Sports", "Business", "Sci/Tech")
PLAY_TEST_SHARE = 0.2


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
