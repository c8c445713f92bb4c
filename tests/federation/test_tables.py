"""Federations from tables: scaled without pooling, encoded, and refused in one line where their meaning is open."""

from __future__ import annotations

import csv
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from coterie import CoterieError, Federation
from coterie.errors import DataError
from coterie.federation.client import split_rows
from coterie.federation.table_columns import describe_site_column
from coterie.federation.table_files import parse_table, read_table
from coterie.federation.table_statistics import CategoryStatistics, NumberStatistics, combine_numbers
from coterie.federation.tables import Table
from tables import NUMERIC, write_hospitals

ROWS = "".join(f"{i % 7}.5,{'ab'[i % 2]},{'yes' if i % 3 else 'no'}\n" for i in range(30))


def write(folder: Path, **files: str) -> str:
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return str(folder / "*.csv")


def refusal(tables: Any, label: str = "y", **options: Any) -> str:
    with pytest.raises(CoterieError) as caught:
        Federation.from_tables(tables, label, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "sites"
    write_hospitals(folder, 3, share=0.3)
    return folder


def test_scaling_without_pooling_is_that_of_the_pooled_rows(hospitals: Path) -> None:
    federation = Federation.from_tables(f"{hospitals}/*.csv", label="y", seed=5)
    assert federation.table is not None
    frames = {file.stem: pd.read_csv(file) for file in sorted(hospitals.glob("*.csv"))}
    assert federation.ids == tuple(frames)
    pooled = pd.concat(
        frame.iloc[split_rows(name, len(frame), (0.8, 0.1, 0.1), 5)["train"].numpy()] for name, frame in frames.items()
    )
    scaler = StandardScaler().fit(pooled[list(NUMERIC)])
    columns = {column.name: column for column in federation.table.columns}
    np.testing.assert_allclose([columns[name].mean for name in NUMERIC], scaler.mean_, rtol=1e-10)
    np.testing.assert_allclose([columns[name].scale for name in NUMERIC], scaler.scale_, rtol=1e-10)
    frame = frames["hospital-02"]
    encoded = federation.table.encode(read_table(hospitals / "hospital-02.csv"))
    at = [federation.table.features.index(name) for name in NUMERIC]
    expected = scaler.transform(frame[list(NUMERIC)].fillna(pooled[list(NUMERIC)].mean()))
    np.testing.assert_allclose(encoded[:, at], expected, rtol=1e-10, atol=1e-10)
    gone = [federation.table.features.index(f"{name} missing") for name in NUMERIC]
    np.testing.assert_array_equal(encoded[:, gone], frame[list(NUMERIC)].isna())


def test_combining_keeps_the_digits_that_sums_of_squares_lose() -> None:
    values = 1e6 + np.random.default_rng(0).normal(size=997)
    parts = np.split(values, [3, 400, 401, 800])
    whole = combine_numbers([NumberStatistics.of(part) for part in parts], "column 'a'")
    assert whole.count == 997
    assert whole.mean == pytest.approx(values.mean(), rel=1e-14)
    assert whole.scale == pytest.approx(values.std(), rel=1e-10)
    sum_of_squares = np.square(values).mean() - values.mean() ** 2
    assert abs(sum_of_squares / values.var() - 1) > 1e-7


def test_a_table_is_encoded_as_the_columns_say(tmp_path: Path) -> None:
    a = "age,ward,flat,y\n1,icu,7,yes\n3,,7,no\n,er,7,yes\n"
    b = "age,ward,flat,y\n5,icu,7,no\n5,icu,7,yes\n"
    federation = Federation.from_tables(write(tmp_path, a=a, b=b), "y", splits=(1, 0, 0))
    table = federation.table
    assert table is not None
    assert table.features == ["age", "age missing", "ward=er", "ward=icu", "ward missing", "flat"]
    mean, deviation = 3.5, np.std([1, 3, 5, 5])
    expected = [
        [(1 - mean) / deviation, 0, 0, 1, 0, 0],
        [(3 - mean) / deviation, 0, 0, 0, 1, 0],
        [0, 1, 1, 0, 0, 0],
    ]
    np.testing.assert_allclose(federation["a"].train.x, expected, atol=1e-6)
    assert federation.label_names == ("no", "yes")
    assert federation["a"].train.y.tolist() == [1, 0, 1]
    assert federation.classes == 2
    new, labels = table.transform(pd.DataFrame({"flat": [8], "ward": ["attic"], "age": [3.5]}))
    assert labels is None
    assert new.tolist() == [[0, 0, 0, 0, 0, 1]]


def test_unscaled_numbers_stay_as_they_are(tmp_path: Path) -> None:
    pattern = write(tmp_path, a="v,y\n10,a\n,b\n", b="v,y\n30,a\n40,b\n")
    federation = Federation.from_tables(pattern, "y", scale=False, splits=(1, 0, 0))
    assert federation["a"].train.x[:, 0].tolist() == pytest.approx([10, 80 / 3])
    assert federation["b"].train.x[:, 0].tolist() == [30, 40]


def test_the_rarest_of_many_categories_share_an_input(tmp_path: Path) -> None:
    rows = "".join(f"{word},{i % 2}\n" for i, word in enumerate("aaaabbbbccdd"))
    pattern = write(tmp_path, a=f"v,y\n{rows}", b=f"v,y\n{rows}")
    federation = Federation.from_tables(pattern, "y", max_categories=2, splits=(1, 0, 0))
    assert federation.table is not None
    assert federation.table.features == ["v=a", "v=b", "v other"]
    new, _ = federation.table.transform(pd.DataFrame({"v": ["a", "c", "unseen"]}))
    assert new.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]


def test_csv_parquet_and_frames_are_one_federation(tmp_path: Path, hospitals: Path) -> None:
    expected = Federation.from_tables(hospitals, "y")
    frames = {file.stem: pd.read_csv(file) for file in sorted(hospitals.glob("*.csv"))}
    for name, frame in frames.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    together = pd.concat([frame.assign(site=name) for name, frame in frames.items()])
    together.to_csv(tmp_path / "all.csv", index=False)
    for other in (
        Federation.from_tables(tmp_path / "*.parquet", "y"),
        Federation.from_tables(frames, "y"),
        Federation.from_tables({name: hospitals / f"{name}.csv" for name in frames}, "y"),
        Federation.from_tables(together, "y", client_column="site"),
        Federation.from_tables(tmp_path / "all.csv", "y", client_column="site"),
    ):
        assert other.ids == expected.ids
        assert other.label_names == expected.label_names == ("no", "yes")
        for client in expected:
            assert torch.equal(other[client.id].train.x, client.train.x)
            assert torch.equal(other[client.id].test.y, client.test.y)


def test_a_table_is_the_same_after_json(hospitals: Path, tmp_path: Path) -> None:
    table = Federation.from_tables(hospitals, "y").table
    assert table is not None
    again = Table.from_json(json.loads(json.dumps(table.to_json())))
    assert again == table
    (tmp_path / "table.json").write_text(json.dumps({"checksum": "x", **table.to_json()}))
    assert Table.load(tmp_path / "table.json") == table
    for text in ("[]", "{", "{}", "[" * 5000):
        (tmp_path / "table.json").write_text(text)
        with pytest.raises(DataError, match="table"):
            Table.load(tmp_path / "table.json")
    for damage in ({"format": 2}, {"columns": 3}, {"label_names": None}, {"columns": [{"name": "a"}]}):
        with pytest.raises(DataError, match="table"):
            Table.from_json(table.to_json() | damage)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ufeffa,b\n1,2\n", {"a": [1.0], "b": [2.0]}),
        ("\r\n\r\na;b\r\n1;2\r\n\r\n3;4\r\n", {"a": [1.0, 3.0], "b": [2.0, 4.0]}),
        ("sep=;\na;b\n1;2\n", {"a": [1.0], "b": [2.0]}),
        ("a\tb\n1\tx\n", {"a": [1.0], "b": ["x"]}),
        ('"a, b",c\n"1","x\ny"\n', {"a, b": [1.0], "c": ["x\ny"]}),
        ("a,b\n1, true\n,FALSE\n", {"a": [1.0, None], "b": ["True", "False"]}),
        ("a,b\n1_000,?\n1_000,NA\n", {"a": ["1_000", "1_000"], "b": [None, None]}),
        ("a,b\r1,2\r3,4\r", {"a": [1.0, 3.0], "b": [2.0, 4.0]}),
        (",b\n0,1\n", {"Unnamed: 0": [0.0], "b": [1.0]}),
    ],
)
def test_csv_as_people_write_it(tmp_path: Path, text: str, expected: dict[str, list[Any]]) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(text.encode())
    found = read_table(file).columns
    assert list(found) == list(expected)
    for name, column in found.items():
        values = column.texts.tolist() if column.numbers is None else column.numbers.tolist()
        assert [None if value != value else value for value in values] == expected[name]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a.csv: the file is empty"),
        ("\n \n", "a.csv: the file is empty"),
        ("v,w,y\n", "has a header and no rows"),
        ("v,w,y\n1,2\n", "line 2: 2 fields, but the header has 3 (separated by ','): complete the line"),
        ("v,v,y\n1,2,3\n", "two columns are called 'v': rename one"),
        ("1.5,2,3\n1.5,2,3\n", "first line holds numbers only: begin it with a line of column names"),
        ("v,w\n1,2\n", "a.csv: no column 'y' for the label: known: v, w"),
        (f"v,y\n{ROWS}", "line 2: 3 fields"),
        (f"v,x,w,y\n{ROWS.replace(',', ',1,', 1)}", "line 3: 3 fields"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path: Path, text: str, words: str) -> None:
    pattern = write(tmp_path, a=text, b=f"v,w,y\n{ROWS}")
    assert words in refusal(pattern)


def test_differing_columns_name_the_file_the_column_and_the_remedy(tmp_path: Path) -> None:
    usual = f"v,w,y\n{ROWS}"
    lacking = "v,y\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(20))
    pattern = write(tmp_path, a=usual, b=usual, c=lacking)
    said = refusal(pattern)
    assert "c.csv: no column 'w', which" in said
    assert "--drop w" in said
    assert len(Federation.from_tables(pattern, "y", drop=["w"])) == 3
    extra = "v,w,z,y\n" + "".join(f"{i % 3},a,1,{'ab'[i % 2]}\n" for i in range(20))
    said = refusal(write(tmp_path, c=extra))
    assert "c.csv: column 'z' is not in the other tables" in said
    assert "--drop z" in said


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["12,5", "13.1", "7.0", "8,5"] * 6, "a decimal comma? write 12.5, or give --decimal ,"),
        (
            ["1", "2", "3", "<5"] * 6,
            "row 4 holds '<5' among numbers: correct it or leave it empty, or give --categorical",
        ),
        ([f"patient-{i}" for i in range(24)], "looks like an identifier, so give --drop v"),
        (["2024-01-31", "2024-02-01"] * 12, "holds dates such as '2024-01-31': give --drop v, or write numbers"),
        (["31.1.2024", "1.2.2024 10:30"] * 12, "holds dates such as '31.1.2024'"),
        (["1", "2", "inf", "4"] * 6, "row 3 holds an infinite number"),
        (["1e300", "-1e300"] * 12, "too large to be squared"),
        (["", "NA"] * 12, "no column is left beside the label"),
    ],
)
@pytest.mark.filterwarnings("ignore:column 'v' has no value")
def test_columns_that_can_be_misread_are_asked_back(tmp_path: Path, cells: list[str], words: str) -> None:
    for name in "ab":
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            csv.writer(file, delimiter=";").writerows([["v", "y"], *([cell, i % 2] for i, cell in enumerate(cells))])
    assert words in refusal(tmp_path / "*.csv", splits=(1, 0, 0))


def test_texts_outside_the_training_rows_say_nothing_of_a_column() -> None:
    table = parse_table("v,w\nyes,1\n,2\n,3\n", "a.csv")
    assert describe_site_column(table, np.array([1, 2]), "v", categorical=False) == CategoryStatistics({}, 2)


def test_what_was_asked_back_can_be_answered(tmp_path: Path) -> None:
    rows = "".join(f"{i % 5},{i % 7};u{i};{i % 2}\n" for i in range(30))
    pattern = write(tmp_path, a=f"v;id;y\n{rows}", b=f"v;id;y\n{rows}")
    federation = Federation.from_tables(pattern, "y", decimal=",", drop="id", splits=(1, 0, 0), scale=False)
    assert federation["a"].train.x[8, 0].item() == pytest.approx(3.1)
    assert federation.table is not None
    assert len(federation.table.features) == 1
    both = Federation.from_tables(pattern, "y", categorical="v,id")
    assert both.table is not None
    assert len(both.table.features) > 30


def test_numbers_here_and_texts_there_are_asked_back(tmp_path: Path) -> None:
    numbers = "v,y\n" + "".join(f"{i % 4},{i % 2}\n" for i in range(24))
    texts = "v,y\n" + "".join(f"{'pqrs'[i % 4]},{i % 2}\n" for i in range(24))
    pattern = write(tmp_path, a=numbers, b=texts)
    said = refusal(pattern)
    assert "b.csv, column 'v': holds texts such as" in said
    assert "--categorical v" in said
    assert Federation.from_tables(pattern, "y", categorical=["v"]).table


@pytest.mark.parametrize(
    ("labels", "task", "expected"),
    [
        (["b", "a"], None, ("a", "b")),
        (["1", "2"], None, ("1", "2")),
        (["0.0", "1.0"], None, ("0", "1")),
        (["-1", "1"], None, ("-1", "1")),
        (["true", "false"], None, ("False", "True")),
        (["1", "2", "10"], None, ("1", "2", "10")),
        (["0.5", "1.5"], None, None),
        (["1", "2"], "regression", None),
        (["1.5", "2"], "classification", ("1.5", "2")),
    ],
)
def test_labels_keep_their_names(
    tmp_path: Path, labels: list[str], task: Any, expected: tuple[str, ...] | None
) -> None:
    rows = "".join(f"{i % 5},{labels[i % len(labels)]}\n" for i in range(30))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federation = Federation.from_tables(write(tmp_path, a=f"v,y\n{rows}", b=f"v,y\n{rows}"), "y", task=task)
    assert federation.label_names == expected
    assert federation.classes == (0 if expected is None else len(expected))
    assert federation.regression == (expected is None)


@pytest.mark.parametrize(
    ("labels", "task", "words"),
    [
        (
            [str(i) for i in range(24)],
            None,
            "24 whole numbers from 0 to 23: classes or quantities? give --classification",
        ),
        (["a"], None, "label 'y' is 'a' in every row"),
        (["a", ""], None, "row 2 has no label 'y': fill it in or remove the row"),
        (["a", "1"], "regression", "holds 'a', which is no number"),
        (["1", "inf"], None, "holds an infinite number"),
    ],
)
def test_labels_that_can_be_misread_are_asked_back(tmp_path: Path, labels: list[str], task: Any, words: str) -> None:
    rows = "".join(f"{i % 5},{labels[i % len(labels)]}\n" for i in range(24))
    assert words in refusal(write(tmp_path, a=f"v,y\n{rows}", b=f"v,y\n{rows}"), task=task)


def test_row_numbers_are_warned_of(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 5},{i % 2}\n" for i in range(24))
    with pytest.warns(UserWarning, match=r"column 'Unnamed: 0' counts the rows .* --drop Unnamed: 0"):
        Federation.from_tables(write(tmp_path, a=f",v,y\n{rows}", b=f",v,y\n{rows}"), "y")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", ","), ("\t", ","), (",", ",")])
def test_encoding_separator_and_decimal_mark_are_found_in_each_file(
    tmp_path: Path, encoding: str, separator: str, decimal: str
) -> None:
    file = tmp_path / "a.csv"
    with open(file, "w", newline="", encoding=encoding) as opened:
        rows = [[f"{i}.25".replace(".", decimal), "Müller", "1"] for i in range(5)]
        csv.writer(opened, delimiter=separator).writerows([["größe", "name", "n"], *rows])
    table = read_table(file)
    assert table.columns["größe"].numbers is not None
    assert table.columns["größe"].numbers.tolist() == [0.25, 1.25, 2.25, 3.25, 4.25]
    assert set(table.columns["name"].texts) == {"Müller"}
    assert (table.form.separator, table.form.decimal) == (separator, decimal)
    assert table.form.encoding == {"utf-16": "UTF-16", "cp1252": "Windows-1252"}.get(encoding, "UTF-8")


@pytest.mark.parametrize("cells", [["1,234", "5,678"], ["1,5", "2.5"]])
def test_a_comma_that_may_mean_two_things_is_left_a_text(tmp_path: Path, cells: list[str]) -> None:
    (tmp_path / "a.csv").write_text("v\n" + "".join(f'"{cell}"\n' for cell in cells))
    assert read_table(tmp_path / "a.csv").columns["v"].numbers is None


def test_rows_of_a_client_in_several_files_are_joined(tmp_path: Path) -> None:
    for year, value in (("2023", "1"), ("2024", "")):
        rows = "".join(f"{'ns'[i % 2]},{value or i},{'ab'[i % 3 == 0]}\n" for i in range(24))
        (tmp_path / f"{year}.csv").write_text(f"site,v,y\n{rows}")
    federation = Federation.from_tables(tmp_path, "y", client_column="site", splits=(1, 0, 0), scale=False)
    assert federation.ids == ("n", "s")
    assert federation["s"].train.x[:, 0].tolist() == [1.0] * 12 + [float(i) for i in range(1, 24, 2)]


def test_clients_are_named_by_what_tells_their_files_apart(tmp_path: Path) -> None:
    for site in ("north", "south"):
        (tmp_path / site).mkdir()
        (tmp_path / site / "data.csv").write_text(f"v,w,y\n{ROWS}")
    assert Federation.from_tables(tmp_path / "*/data.csv", "y").ids == ("north", "south")
    (tmp_path / "north" / "more.csv").write_text(f"v,w,y\n{ROWS}")
    assert Federation.from_tables(tmp_path / "**/*.csv", "y").ids == ("north-data", "north-more", "south-data")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drop": ["nothing"]}, "drop: no table has a column 'nothing'"),
        ({"drop": ["y"]}, "'y' is the label"),
        ({"drop": "v,,w"}, "expected names of columns"),
        ({"client_column": "site"}, "no column 'site' for the client"),
        ({"client_column": "y"}, "label and client_column are both 'y'"),
        ({"decimal": ";"}, "expected '.' or ','"),
        ({"max_categories": 0}, "expected 1 or more"),
        ({"task": "clustering"}, "expected classification or regression"),
        ({"groups": {"a": 1}}, "client 'b' has no entry in groups"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    assert words in refusal(write(tmp_path, a=f"v,w,y\n{ROWS}", b=f"v,w,y\n{ROWS}"), **options)


def test_paths_without_tables_are_refused(tmp_path: Path) -> None:
    assert "no table found there" in refusal(tmp_path / "*.csv")
    assert "no table found there" in refusal(tmp_path)
    assert "needs --client-column" in refusal(write(tmp_path, a=f"v,w,y\n{ROWS}"))
    for byte in (0x00, 0x81):
        (tmp_path / "b.csv").write_bytes(b"v,w,y\n\xe9" + bytes([byte]) + b",1,2\n")
        assert "b.csv: not a text in UTF-8, UTF-16 or Windows-1252 (byte 7): save it as UTF-8" in refusal(tmp_path)
    (tmp_path / "b.csv").unlink()
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing")
    assert "b.parquet: not a readable Parquet file" in refusal(tmp_path)
    assert "needs client_column" in refusal(pd.DataFrame({"v": [1], "y": [1]}))
    assert "no tables were given" in refusal({})


def test_new_tables_must_have_the_columns_of_training(tmp_path: Path) -> None:
    pattern = write(tmp_path, a=f"v,w,y\n{ROWS}", b=f"v,w,y\n{ROWS}")
    table = Federation.from_tables(pattern, "y").table
    assert table is not None
    for columns, words in (
        ({"v": [1]}, "the table: no column 'w', which there was in training"),
        ({"v": [1], "w": ["a"], "z": [1]}, "column 'z' was not there in training: remove it"),
        ({"v": ["x"], "w": ["a"]}, "column 'v': row 1 holds 'x', which is no number"),
        ({"v": [1], "w": ["a"], "y": ["maybe"]}, "label 'y' is 'maybe', which is none of 'no', 'yes'"),
    ):
        with pytest.raises(DataError, match=words):
            table.transform(pd.DataFrame(columns))


def test_thousands_of_columns_are_read(tmp_path: Path) -> None:
    header = ",".join(f"c{i}" for i in range(1000)) + ",y\n"
    rows = "".join(",".join(["0.5", "1.5"][k % 2] for _ in range(1000)) + f",{k % 2}\n" for k in range(6))
    federation = Federation.from_tables(write(tmp_path, a=header + rows, b=header + rows), "y")
    assert federation.input_shape == (1000,)
