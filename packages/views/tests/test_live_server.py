"""The server answers questions, streams news to several listeners, keeps strangers out, and ends when told to."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main
from made_runs import Serve, Write, client, lines, record


def get(address: str, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
        return json.loads(answer.read())


def refusal(address: str, method: str = "GET", **headers: str) -> int:
    request = urllib.request.Request(address, headers=headers, method=method)
    with pytest.raises(urllib.error.HTTPError) as problem:
        urllib.request.urlopen(request, timeout=10)
    problem.value.close()
    return problem.value.code


def listen(address: str) -> HTTPResponse:
    stream: HTTPResponse = urllib.request.urlopen(address, timeout=10)
    return stream


def next_event(stream: HTTPResponse) -> tuple[str, Any]:
    kind = ""
    while True:
        line = stream.readline().decode().rstrip("\n")
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            return kind, json.loads(line[6:])


def test_questions_and_answers(tmp_path: Path, serve: Serve, write_run: Write) -> None:
    write_run(tmp_path / "<script>", [record(1), record(2)], clients=[client("x")])
    with serve(tmp_path) as address:
        (brief,) = get(f"{address}/api/runs")
        assert (brief["id"], brief["round"], brief["status"]) == ("<script>", 2, "finished")
        told = get(f"{address}/api/run?id=%3Cscript%3E&from=1&epoch={brief['epoch']}")
        assert [r["round"] for r in told["records"]] == [2]
        assert get(f"{address}/api/clients?id=%3Cscript%3E")["rows"] == [
            {"client": "x", "cluster": 0, "test_samples": 9, "accuracy": 0.5, "loss": 1.0}
        ]
        assert refusal(f"{address}/api/run?id=../x") == 404
        assert refusal(f"{address}/api/run") == 404
        assert refusal(f"{address}/static/../server.py") == 404
        assert refusal(f"{address}/api/runs", "POST") == 405
        assert refusal(f"{address}/api/runs", "DELETE") == 405
        with urllib.request.urlopen(address) as page:
            assert b"<title>Coterie" in page.read()
            assert "script-src 'self'" in page.headers["content-security-policy"]


def test_news_reach_every_listener(tmp_path: Path, serve: Serve, write_run: Write) -> None:
    run = write_run(tmp_path / "r", [record(1)], rounds=9)
    with serve(tmp_path) as address:
        streams = [listen(f"{address}/api/events") for _ in range(3)]
        for stream in streams:
            kind, runs = next_event(stream)
            assert kind == "runs"
            assert [r["round"] for r in runs] == [1]
        with open(run / "history.jsonl", "ab") as file:
            file.write(lines([record(2)]))
        for stream in streams:
            kind, brief = next_event(stream)
            assert (kind, brief["round"]) == ("run", 2)
        shutil.rmtree(run)
        for stream in streams:
            assert next_event(stream) == ("gone", "r")
            stream.close()


def test_a_token_is_needed_where_one_is_set(tmp_path: Path, serve: Serve) -> None:
    with serve(tmp_path, "s3cret") as address:
        for path in ("/", "/api/runs", "/api/events", "/static/app.js"):
            assert refusal(address + path) == 401
            assert refusal(f"{address}{path}?token=s3creT") == 401
        assert get(f"{address}/api/runs?token=s3cret") == []
        assert get(f"{address}/api/runs", **{"X-Coterie-Token": "s3cret"}) == []
        assert get(f"{address}/api/runs", Authorization="Bearer s3cret") == []
        with urllib.request.urlopen(f"{address}/?token=s3cret") as page:
            cookie = page.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert get(f"{address}/api/runs", Cookie=cookie.partition(";")[0]) == []


def test_another_name_for_this_machine_is_refused(tmp_path: Path, serve: Serve) -> None:
    with serve(tmp_path) as address:
        assert refusal(f"{address}/api/runs", Host="evil.example") == 403
        assert get(f"{address}/api/runs", Host="localhost:80") == []
        assert get(f"{address}/api/runs", Host="[::1]:80") == []


def test_the_command_prints_an_address_and_ends_on_interrupt(tmp_path: Path, serve: Serve) -> None:
    words = [sys.executable, "-c", "from coterie.cli import main; main()", "serve", str(tmp_path)]
    options = ["--host", "0.0.0.0", "--port", "0"]
    process = subprocess.Popen(
        [*words, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://0\.0\.0\.0:(\d+)/\?token=([\w-]{30,})", process.stdout.readline())
        assert found
        port, token = found.groups()
        assert refusal(f"http://127.0.0.1:{port}/api/runs") == 401
        stream = listen(f"http://127.0.0.1:{port}/api/events?token={token}")
        assert next_event(stream) == ("runs", [])
        process.send_signal(signal.SIGINT)  # with a browser still listening
        out, errors = process.communicate(timeout=10)
        assert process.returncode == 0, errors
        assert "the runs go on" in out
        assert errors == ""
    finally:
        process.kill()
        process.wait()


def test_bad_input_is_one_line(tmp_path: Path, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["nowhere"], [str(tmp_path), "--port", "99999"], [str(tmp_path), "--host", "no.such.host.invalid"]):
        with pytest.raises(SystemExit) as ended:
            main(["serve", *words])
        assert ended.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_missing_server_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("coterie_views.live.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("coterie_views.live.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit):
        main(["serve", str(tmp_path)])
    assert "coterie[web]" in capsys.readouterr().err


def test_a_request_that_never_ends_is_cut(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie_views.live.patience.ASK_SECONDS", 0.2)
    with serve(tmp_path) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            assert slow.recv(1) == b""  # cut, not waited for
        assert get(f"{address}/api/runs") == []


def test_a_reader_that_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = pytest.importorskip("coterie_views.live.patience", reason="needs coterie[web]")
    monkeypatch.setattr(patience, "READ_SECONDS", 0.05)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start"})

    async def never(*_: Any) -> None:
        await asyncio.sleep(60)

    scope = {"type": "http", "raw_path": b"/", "query_string": b"", "headers": []}
    with pytest.raises(TimeoutError):
        asyncio.run(patience.Patience(answer)(scope, never, never))


def test_headers_have_a_limit(tmp_path: Path, serve: Serve) -> None:
    with serve(tmp_path) as address:
        assert refusal(f"{address}/api/runs", **{"X-Long": "a" * 2**15}) in (400, 431)
        assert refusal(f"{address}/api/run?id={'a' * 2**15}") in (400, 414, 431)
