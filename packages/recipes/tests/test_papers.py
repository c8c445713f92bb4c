"""The page of the papers is what its builder makes of the stored results, and the builder refuses what is missing."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import ConfigError
from coterie_recipes import flt_tables, freshness, list_recipes, papers, papers_pictures
from coterie_recipes.freshness import is_fresh, recipe_source
from coterie_recipes.papers import (
    BEGIN,
    END,
    END_OF_CODE,
    FROM_CODE,
    PAPERS,
    differs,
    is_figure,
    judged,
    picture_of,
    rebuilt,
    shown,
)
from coterie_recipes.papers_index import Item

DOCS = Path(__file__).parents[3] / "docs"


def row(values: list[float], paper: Any = None, setting: str = "iid", measure: str = "accuracy %") -> dict[str, Any]:
    return {"setting": setting, "measure": measure, "values": values, "paper": paper}


def kept(folder: Path, *rows: dict[str, Any]) -> Path:
    made = {"command": "coterie reproduce toy --seeds 3", "commit": "abc", "machine": "one", "date": "2026-01-02"}
    (folder / "toy.json").write_text(
        json.dumps(made | {"seeds": [0, 1, 2], "scale": "full", "cpu_seconds": 240, "rows": list(rows)})
    )
    return folder


def test_the_page_is_what_the_stored_results_give() -> None:
    page = (DOCS / "papers.md").read_text(encoding="utf-8")
    assert rebuilt(page, DOCS / "results") == page, "run: python -m coterie_recipes.papers docs"


def test_every_figure_that_was_run_has_its_picture() -> None:
    page = (DOCS / "papers.md").read_text(encoding="utf-8")
    linked = {DOCS / name for name in re.findall(r"\]\((images/[^)]+)\)", page)}
    figures = [item for items in PAPERS.values() for item in items if is_figure(item)]
    drawn = [item for item in figures if shown(item, DOCS / "results").rows]
    assert len(drawn) > 10
    assert linked == {DOCS / "images" / picture_of(item) for item in drawn}
    assert set((DOCS / "images" / "papers").iterdir()) < linked


def test_a_picture_holds_the_rows() -> None:
    rows = [row([1.0, 3.0], setting=f"K={k}, γ={x}") for k in (2, 4) for x in (0.5, 1)]
    panel, other = papers_pictures.draw(
        [*rows, *(row([x], setting=f"S{x}, FLT", measure="loss") for x in (5.0, 6.0))]
    ).axes[:2]
    assert panel.get_xlabel() == "γ"
    assert panel.get_legend_handles_labels()[1] == ["K=2", "K=4"]
    drawn = [bars[0].get_xydata().tolist() for bars in panel.containers]
    assert drawn == [[[0.5, 2.0], [1.0, 2.0]]] * 2
    assert [bar.get_width() for bar in other.patches] == [5.0, 6.0]


def test_every_command_on_the_page_names_a_recipe() -> None:
    known = {recipe.name for recipe in list_recipes()}
    for items in PAPERS.values():
        for item in items:
            one = shown(item, DOCS / "results")
            if one.stored is not None:
                _, command, name, *_ = one.stored["command"].split()
                assert command == "run" or (command == "reproduce" and name in known)
                assert one.stored["commit"]
                assert one.stored["date"]


def test_no_recipe_has_changed_since_a_result_that_names_its_code() -> None:
    stored = [json.loads(path.read_text()) for path in DOCS.glob("results/**/*.json")]
    changed = [one["command"] for one in stored if "recipe" in one and is_fresh(one) is False]
    assert not changed, "run and store these again; without time for that, delete their source: the page then says so"


def test_what_a_recipe_uses_is_in_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: recipe_source(name) for name in ("flt-table1", "flt-table2", "cfl-fig3")}
    text = Path(flt_tables.__file__).read_text()
    changed = text.replace("QUICK_ROUNDS = 50", "QUICK_ROUNDS = 51").replace('"""FedSEM as', '"""Former FedSEM as')
    assert changed.count("51") > text.count("51")
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda p, *a, **k: changed if p.name == "flt_tables.py" else real(p, *a, **k)
    )
    for function in (recipe_source, freshness._definitions):
        function.cache_clear()
    after = {name: recipe_source(name) for name in before}
    for function in (recipe_source, freshness._definitions):
        function.cache_clear()
    assert [name for name in before if before[name] != after[name]] == ["flt-table1", "flt-table2"]


def test_comments_and_docstrings_are_not() -> None:
    texts = ['def a(x):\n    """Old."""\n    return x  # why\n', 'def a(\n    x,\n):\n    """New."""\n    return x\n']
    codes = [freshness.Definition(ast.parse(text).body[0], text).code().replace(",)", ")") for text in texts]
    assert codes[0] == codes[1] == "defa(x):returnx"


@pytest.mark.parametrize(
    ("values", "paper", "far"),
    [
        ([1.0, 2.0, 3.0], 2.0, False),
        ([1.0, 2.0, 3.0], 3.1, False),  # the standard error is 1/√3
        ([1.0, 2.0, 3.0], 3.2, True),
        ([1.0, 2.0, 3.0], "3.20 ± 0.10", False),
        ([1.0, 2.0, 3.0], "≈ 4", True),
        ([1.0, 2.0, 3.0], "> 0", False),
        ([1.0], 9.0, False),  # one seed has no error
        ([1.0], "9.0 ± 0.5", True),  # and is held to the paper's
        ([1.0], "1.4 ± 0.5", False),
        ([1.0, 1.0], 1, False),
        ([1.0, 2.0, 3.0], None, False),
    ],
)
def test_what_is_further_away_than_two_errors(values: list[float], paper: Any, far: bool) -> None:
    assert differs(row(values, paper)) is far


@pytest.mark.parametrize(
    ("values", "paper", "scale", "verdict"),
    [
        ([1.0, 2.0, 3.0], 2.0, "full", "agrees"),
        ([1.0, 2.0, 3.0], 3.2, "full", "differs"),
        ([1.0, 2.0, 3.0], 2.0, "quick", "smaller than the paper's"),
        ([1.0, 2.0, 3.0], "> 0", "quick", "no number printed"),
        ([1.0], 1.0, "full", "one seed, no ± printed"),
        ([1.0], "1.4 ± 0.5", "full", "agrees"),
        ([1.0], "2.4 ± 0.5", "full", "differs"),
    ],
)
def test_what_is_comparable(values: list[float], paper: Any, scale: str, verdict: str) -> None:
    assert judged(row(values, paper), {"scale": scale}) == verdict


def test_a_page_is_built_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = Item(
        "Table 1", "a table", "toy", (("iid", "accuracy*"), ("iid", "*")), says="it rises.", differs="fewer rounds."
    )
    monkeypatch.setattr(papers, "PAPERS", {"A": (item, Item("Figure 1", "a drawing", not_run="a drawing"))})
    page = f"# Papers\n\n{FROM_CODE}\n{END_OF_CODE}\n{BEGIN}\nformer text\n{END}\nafter\n"
    built = rebuilt(page, kept(tmp_path, row([1.0, 2.0, 3.0], 9.0), row([5.0], measure="|loss|")))
    assert built.startswith("# Papers\n")
    assert built.endswith("\nafter\n")
    assert "former text" not in built
    assert "| `fedsem` | `weighting` | uniform |" in built
    assert "`fedavg`" in built.split("No default departs in")[1].split(".")[0]
    assert "2 entries, 1 of them run, 1 at the paper's size" in built
    assert "| A | Table 1: a table | full | 3 |  | 1 | 1 | 1 no number printed |" in built
    assert "| A | Figure 1: a drawing | | | | | | a drawing |" in built
    assert "| iid | accuracy % | 9.0 | 2 ± 0.58 | differs |" in built
    assert "| iid | \\|loss\\| |  | 5 |  |" in built
    assert "The paper: it rises." in built
    assert "* What differs: fewer rounds." in built
    assert rebuilt(built, tmp_path) == built


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = kept(tmp_path, row([1.0, 2.0, 3.0], 9.0))
    with pytest.raises(ConfigError, match="say what differs from the paper's at iid, accuracy %"):
        shown(Item("Table 1", "a table", "toy"), folder)
    with pytest.raises(ConfigError, match="has no row 'iid', 'loss'"):
        shown(Item("Table 1", "a table", "toy", (("iid", "loss"),)), folder)
    with pytest.raises(ConfigError, match=r"other\.json is missing"):
        shown(Item("Table 1", "a table", "other"), folder)
    with pytest.raises(ConfigError, match="once each"):
        rebuilt("no marks", folder)
