"""The board runs, is killed and resumes, takes a row of somebody else's, and writes its pages from its JSON alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main
from coterie.errors import ConfigError, RunError
from coterie_board.board import Board, run_board
from coterie_board.federations import FEDERATIONS, STRATA, SUBSET, SUBSET_METHODS, BoardFederation, find_federations
from coterie_board.methods import METHODS, NUMBERS, check_method, is_class_path, variants
from coterie_board.pages import write_pages

TINY = {"clients": 4, "samples": 20, "model": "mlp:hidden=8", "epochs": 1}
SMALL = (
    BoardFederation("digits-iid", "none", "one distribution", 3, options=TINY, has_groups=False),
    BoardFederation(
        "digits-permuted", "labels", "labels permuted", 3, options={**TINY, "groups": 2, "model": "logistic"}
    ),
)
ROWS = ["fedavg", "local", "ifca", "fedper", "groups"]
PAGES = ("leaderboard.md", "board.html")
TOY = '''
from coterie.methods import FedAvg

class Toy(FedAvg):
    """FedAvg under another name."""
    name = "toy"
'''


def text_of(page: Path) -> str:
    """A page without its line breaks."""
    return " ".join(page.read_text().split())


def without_cpu(board: Board) -> Any:
    """The results without what differs from run to run."""
    return json.loads(
        json.dumps(board.results), object_hook=lambda found: {k: v for k, v in found.items() if k != "cpu"}
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Board]:
    """A board of three methods on two tiny federations, with its pages."""
    folder = tmp_path_factory.mktemp("board") / "out"
    board = run_board(ROWS, SMALL, [0, 1], folder, workers=1)
    board.about = {"command": "coterie leaderboard", "commit": "abc", "machine": "here", "date": "2026-01-01"}
    board.write(folder / "leaderboard.json")
    write_pages(board, folder)
    return folder, board


def test_every_method_is_tuned_alike(made: tuple[Path, Board]) -> None:
    _, board = made
    assert list(board.results["digits-iid"]) == ["fedavg", "local", "ifca", "fedper"]  # it has no groups
    assert list(board.results["digits-permuted"]) == ROWS
    for entry in SMALL:
        for row, found in board.results[entry.name].items():
            if found["choice"] is None:
                continue
            chosen = found["trials"][found["choice"]]
            assert chosen["value"] == max(trial["value"] for trial in found["trials"] if "value" in trial)
            rates = [trial["lr"] for trial in found["trials"] if trial["options"] == chosen["options"]]
            assert min(rates) < chosen["lr"] < max(rates), row  # the best step size is inside
            assert [run["seed"] for run in found["runs"]] == [0, 1]
        assert {trial["options"] for trial in board.results[entry.name]["ifca"]["trials"]} == set(variants("ifca"))
    assert board.results["digits-permuted"]["groups"]["runs"][0]["conflict"] == 0


def test_numbers_of_clusters_do_not_know_the_truth() -> None:
    for method in METHODS:
        check_method(method)
    assert variants("ifca") == ("k=auto", *(f"k={k}" for k in NUMBERS))
    assert variants("ifca:k=3") == ("",)
    assert variants("fedavg-ft") == ("personalise=5",)


def test_the_board_has_what_it_promises() -> None:
    assert len(METHODS) >= 20
    assert len(FEDERATIONS) >= 40
    assert {entry.stratum for entry in FEDERATIONS} == set(STRATA)
    assert all(sum(entry.stratum == stratum for entry in FEDERATIONS) >= 4 for stratum in STRATA)
    assert len({entry.name for entry in FEDERATIONS}) == len(FEDERATIONS)
    assert len(find_federations(SUBSET)) == len(SUBSET)
    assert set(SUBSET_METHODS) <= set(METHODS)
    for entry in FEDERATIONS:
        assert entry.rate > 0  # the scenario is there


def test_reading_gives_the_same_board_and_pages(made: tuple[Path, Board]) -> None:
    folder, board = made
    again = Board.read(folder / "leaderboard.json")
    assert again.to_json() == json.loads(json.dumps(board.to_json()))
    before = {name: (folder / name).read_text() for name in PAGES}
    main(["leaderboard", "--pages", str(folder / "leaderboard.json"), "--out", str(folder)])
    assert {name: (folder / name).read_text() for name in PAGES} == before
    main(["leaderboard", "--pages", str(folder / "leaderboard.json"), "--out", str(folder / "far/away")])
    assert "(../../leaderboard.json)" in (folder / "far/away/leaderboard.md").read_text()


def test_the_pages_of_the_manual_are_those_of_the_stored_board(tmp_path: Path) -> None:
    docs = Path(__file__).parents[3] / "docs"
    write_pages(Board.read(docs / "results/leaderboard.json"), tmp_path, "results/leaderboard.json")
    for name in PAGES:
        assert (docs / name).read_text() == (tmp_path / name).read_text(), f"docs/{name} is not of the stored board"


def test_the_pages_hold_every_result(made: tuple[Path, Board]) -> None:
    folder, board = made
    page, site = (folder / "leaderboard.md").read_text(), (folder / "board.html").read_text()
    mean = sum(run["value"] for run in board.results["digits-iid"]["local"]["runs"]) / 2
    for text in (page, site):
        assert f"{100 * mean:.1f} ±" in text
        assert "conflict" in text
    assert "| `ifca` |" in page
    assert "<script" not in site
    assert "http" not in site.replace("http://www.w3.org/2000/svg", "")


def test_a_killed_board_resumes(made: tuple[Path, Board], tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from test_board import ROWS, SMALL, run_board\n"
        "if __name__ == '__main__':\n"
        "    run_board(ROWS, SMALL, [0, 1], Path('out'), workers=1)\n"
    )
    (tmp_path / "go.py").write_text(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{code}")
    running = subprocess.Popen([sys.executable, "go.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    cells = tmp_path / "out/cells"
    until = time.monotonic() + 60
    while len(list(cells.glob("*.json"))) < 5 and time.monotonic() < until:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in cells.glob("*.json")}
    lines: list[str] = []
    board = run_board(ROWS, SMALL, [0, 1], tmp_path / "out", workers=1, log=lines.append)
    assert 5 <= len(kept) < len(list(cells.glob("*.json")))
    assert all((cells / name).stat().st_mtime_ns == changed for name, changed in kept.items())
    assert any("are kept from before" in line for line in lines)
    assert without_cpu(board) == without_cpu(made[1])


def test_somebody_elses_method_is_one_command(
    made: tuple[Path, Board], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "toy_package.py").write_text(TOY)
    base = str(made[0] / "leaderboard.json")
    main(["leaderboard", "--base", base, "--add", "toy_package:Toy", "--out", "mine", "--workers", "1"])
    board = Board.read(tmp_path / "mine/leaderboard.json")
    assert board.methods == [*made[1].methods, "toy"]
    assert "digits-iid toy default step 0 seed 1000: done" in capsys.readouterr().err
    for entry in SMALL:
        rows = board.results[entry.name]
        assert rows["local"] == made[1].results[entry.name]["local"]
        values = [[run["value"] for run in rows[name]["runs"]] for name in ("toy", "fedavg")]
        assert values[0] == values[1]  # it is FedAvg
    assert "| `toy` |" in (tmp_path / "mine/leaderboard.md").read_text()
    assert board.about["base"]["commit"] == "abc"


def test_a_method_that_fails_says_why_and_leaves_the_others_alone(made: tuple[Path, Board]) -> None:
    folder, board = made
    found = board.results["digits-permuted"]["fedper"]
    assert (found["choice"], found["runs"]) == (None, [])
    assert "whole model" in found["trials"][0]["failed"]
    assert board.results["digits-iid"]["fedper"]["choice"] is not None
    assert "| `fedper` | digits-permuted | head='last' is the whole model" in (folder / "leaderboard.md").read_text()


def test_what_is_wrong_is_one_line(made: tuple[Path, Board], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown method 'ifcaa': did you mean 'ifca'"):
        check_method("ifcaa")
    with pytest.raises(ConfigError, match=r"'nowhere\.at_all:Method': cannot be imported"):
        check_method("nowhere.at_all:Method")
    with pytest.raises(ConfigError, match="expected a class with start, round and assignment"):
        check_method("collections:OrderedDict")
    with pytest.raises(ConfigError, match="federation 'digits-idi' is not on the board: did you mean 'digits-iid'"):
        find_federations(["digits-idi"])
    with pytest.raises(RunError, match=r"holds cells of seeds \[0, 1\]"):
        run_board(["fedavg"], SMALL, [0], made[0])
    with pytest.raises(RunError, match="holds cells of digits-iid of another size"):
        run_board(["fedavg"], [replace(SMALL[0], passes=9)], [0, 1], made[0])
    (tmp_path / "other").mkdir()
    (tmp_path / "other/letter.txt").touch()
    with pytest.raises(RunError, match="not empty and holds no board"):
        run_board(["fedavg"], SMALL, [0], tmp_path / "other")
    (tmp_path / "bad.json").write_text('{"format": 1}')  # of the former protocol
    with pytest.raises(RunError, match=r"bad\.json: not a board"):
        Board.read(tmp_path / "bad.json")


def test_the_command_names_what_does_not_go_together(
    capsys: pytest.CaptureFixture[str], made: tuple[Path, Board]
) -> None:
    base = str(made[0] / "leaderboard.json")
    for words, message in (
        (["--subset", "--base", base], "leave --subset out"),
        (["--subset", "--federations", "exam"], "leave --subset out"),
        (["--pages", "nowhere.json"], "no such file"),
    ):
        with pytest.raises(SystemExit):
            main(["leaderboard", *words])
        assert message in capsys.readouterr().err


def test_class_paths_are_told_from_options() -> None:
    assert is_class_path("my.package:Method")
    assert not is_class_path("ifca:k=4")
    assert not is_class_path("ifca")


def test_a_stored_board_goes_on_where_it_ended(made: tuple[Path, Board], tmp_path: Path) -> None:
    half = Board.read(made[0] / "leaderboard.json")
    del half.results["digits-permuted"]
    half.notes = ["a sentence"]
    half.write(tmp_path / "half.json")
    words = ["leaderboard", "--base", str(tmp_path / "half.json"), "--out", str(tmp_path / "out"), "--workers", "1"]
    main([*words, "--federations", "digits-iid"])
    page = text_of(tmp_path / "out/leaderboard.md")
    assert "**Unfinished: 1 of 2 federations have been computed.**" in page
    assert "a sentence" in page
    main(words)
    done = Board.read(tmp_path / "out/leaderboard.json")
    assert without_cpu(done) == without_cpu(made[1])
    assert "All of it has been computed." in text_of(tmp_path / "out/leaderboard.md")
