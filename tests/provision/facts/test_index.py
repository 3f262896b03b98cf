"""The index that a machine's pip or uv is told of is asked for real."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dflash.hosts.chain import parse_chain
from dflash.hosts.reach import reach
from dflash.provision.fact import read
from dflash.provision.facts.index import INDEX, Index
from tests.lab.service import free_port

VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "PIP_CONFIG_FILE")


class Answering(BaseHTTPRequestHandler):
    """The path is the status that it answers with."""

    def do_HEAD(self) -> None:
        self.send_response(int(self.path.strip("/")))
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def asked(monkeypatch: pytest.MonkeyPatch, home: Path, **variables: str) -> Index:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(home), "no_proxy": "127.0.0.1", **variables}.items():
        monkeypatch.setenv(name, value)
    with reach(parse_chain("local")) as connection:
        return read(connection, [INDEX])[INDEX]


def test_one_that_answers_is_reached_and_so_is_one_that_wants_a_password(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(monkeypatch, tmp_path, UV_DEFAULT_INDEX=f"http://{index}/200") == Index("127.0.0.1")
    there = asked(monkeypatch, tmp_path, PIP_INDEX_URL=f"http://someone:secret@{index}/401")
    assert there == Index("127.0.0.1")


def test_one_that_is_broken_or_gone_says_so(index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, tmp_path, UV_INDEX_URL=f"http://{index}/503").problem == "it answers 503"
    gone = asked(monkeypatch, tmp_path, UV_INDEX_URL=f"http://127.0.0.1:{free_port()}/")
    assert "Connection refused" in gone.problem


def test_a_file_of_the_user_names_it_where_no_variable_does(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".config" / "uv").mkdir(parents=True)
    (tmp_path / ".config" / "uv" / "uv.toml").write_text(f'[[index]]\nurl = "http://{index}/200"\ndefault = true\n')
    assert asked(monkeypatch, tmp_path) == Index("127.0.0.1")
