"""Labels and categories that sites spell differently, and those that one site alone has."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from coterie.federation.labels import SURELY_CLASSES
from coterie.federation.table_columns import listed
from coterie.federation.table_files import RawColumn
from coterie_tables.findings import Finding, Tables, columns_of

FAMILIES = (
    (
        ("yes", "y", "true", "t", "1", "j", "ja", "oui", "si", "positive", "pos", "+"),
        ("no", "n", "false", "f", "0", "nein", "non", "negative", "neg", "-"),
    ),
    (
        ("male", "m", "man", "mann", "mannlich", "homme", "1"),
        ("female", "f", "w", "woman", "frau", "weiblich", "femme", "0", "2"),
    ),
)
"""Words for the same two answers."""
SHORTEST = 6
"""Texts with fewer letters are not compared by single letters: many words of five letters differ in one."""
Counts = Mapping[str, Counter[str]]
"""How often each text occurs, by site."""
Spellings = dict[str, dict[str, str]]
"""By site: what each text is to be replaced by."""


def check_spelling(tables: Tables, label: str | None, rule: Callable[[Counts], Spellings]) -> Iterator[Finding]:
    """Labels and categories that a site spells unlike the others, by one rule."""
    for column, counts in _categories(tables, label):
        for site, texts in rule(counts).items():
            pairs = ", ".join(f"{old!r} for {new!r}" for old, new in texts.items())
            yield Finding(site, column, f"says {pairs}", "replace it", {"values": {column: texts}})


def _categories(tables: Tables, label: str | None) -> Iterator[tuple[str, Counts]]:
    """How often each text occurs at each site, by column."""
    for column, columns in columns_of(tables):
        counts = _counts(columns, is_label=column == label)
        if len(counts) > 1:
            yield column, counts


def _counts(columns: Mapping[str, RawColumn], is_label: bool) -> dict[str, Counter[str]]:
    """How often each text occurs at each site; empty for a column that is one of numbers, or mostly so."""
    texts = [known for known in columns.values() if known.numbers is None and not known.empty]
    of_numbers = not texts or any(known.odd for known in texts)
    if of_numbers and not is_label:
        return {}
    counts = {site: _count(known) for site, known in columns.items()}
    whole = sum(counts.values(), Counter())
    numbers_at_some_sites = len(texts) < len(columns)
    if numbers_at_some_sites and len(whole) > SURELY_CLASSES:
        return {}  # more than may be codes
    name_rows = len(whole) >= whole.total() / 2
    return {} if name_rows else {site: known for site, known in counts.items() if known}


def _count(column: RawColumn) -> Counter[str]:
    return Counter(text for text in column.texts if text is not None)


def plain(text: str) -> str:
    """A text in small letters, without accents, spaces and marks; a number as such."""
    if is_number(text):
        return f"{float(text):g}"
    letters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in letters if letter.isalnum()) or text


def is_number(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _to_commonest(counts: Counts, groups: Mapping[str, Sequence[str]]) -> Spellings:
    """Every text replaced by the one of its group that most sites, then most rows have."""
    sites = Counter(text for known in counts.values() for text in known)
    rows = sum(counts.values(), Counter())
    best = {text: max(group, key=lambda one: (sites[one], rows[one])) for group in groups.values() for text in group}
    found = {
        site: {text: best[text] for text in known if best.get(text, text) != text} for site, known in counts.items()
    }
    return {site: texts for site, texts in found.items() if texts}


def _grouped(texts: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for text, key in texts.items():
        groups.setdefault(key, []).append(text)
    return groups


def same_letters(counts: Counts) -> Spellings:
    """Texts that differ in case, accents, spaces and marks alone."""
    return _to_commonest(counts, _grouped({text: plain(text) for known in counts.values() for text in known}))


def same_answers(counts: Counts) -> Spellings:
    """Words for the same answer, where every text of the column is one of a family's words.

    Numbers alone, and 0 beside 2 at one site, are codes of another kind.
    """
    texts = {text for known in counts.values() for text in known}
    if all(map(is_number, texts)) or any({"0", "2"} <= set(map(plain, known)) for known in counts.values()):
        return {}
    for family in FAMILIES:
        answers = {text: next((words[0] for words in family if plain(text) in words), "") for text in texts}
        if all(answers.values()):
            return _to_commonest(counts, _grouped(answers))
    return {}


def _elsewhere(counts: Counts, site: str) -> tuple[set[str], list[str]]:
    """The texts that other sites have, and those of them that most have."""
    sites = Counter(text for other, known in counts.items() if other != site for text in known)
    return set(sites), [text for text, number in sites.items() if 2 * number > len(counts) - 1]


def misspelt(counts: Counts) -> Spellings:
    """Texts of one site alone that abbreviate one that most others have, or differ from it in one letter."""
    found: Spellings = {}
    for site, known in counts.items():
        elsewhere, common = _elsewhere(counts, site)
        for text in known.keys() - elsewhere:
            abbreviated = [other for other in common if other not in known and _abbreviates(text, other)]
            meant = abbreviated or [other for other in common if _one_letter_apart(plain(text), plain(other))]
            if len(meant) == 1:
                found.setdefault(site, {})[text] = meant[0]
    return found


def _abbreviates(one: str, other: str) -> bool:
    short, long = sorted((plain(one), plain(other)), key=len)
    return long.startswith(short) and short.isalpha()


def _one_letter_apart(one: str, other: str) -> bool:
    """Whether long texts differ in one letter that is wrong, missing or changed places with the next."""
    if min(len(one), len(other)) < SHORTEST or not (one + other).isalpha():
        return False
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    a, b = one[start:], other[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def check_categories(tables: Tables, label: str | None) -> Iterator[Finding]:
    """Labels and categories that one site alone has: another coding if it shares none with the others."""
    for column, counts in _categories(tables, label):
        for site, known in counts.items():
            elsewhere, common = _elsewhere(counts, site)
            alone = sorted(known.keys() - elsewhere)
            lacking = [text for text in common if text not in known]
            if column == label and len(alone) == len(lacking) == 1 and not is_number(alone[0]):
                changes = {"values": {column: {alone[0]: lacking[0]}}}
                yield Finding(site, column, f"says {alone[0]!r}, others {lacking[0]!r}", "replace it", changes)
            elif alone and len(alone) == len(known):
                what = f"has {listed(alone)}, the other sites {listed(sorted(elsewhere))}: no value in common"
                yield Finding(site, column, what, "replace each by the other sites' value")
            elif alone:
                what = f"no other site has {listed(alone)}"
                yield Finding(site, column, what, "correct it if it is a mistake", problem=False)
