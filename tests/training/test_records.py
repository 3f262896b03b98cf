"""JSONL as the field writes it, and the line that is named when it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash.errors import DataError, StorageError
from dflash.training.records import Record, read_records, write_records

CHAT = [{"role": "user", "content": "näh?"}, {"role": "assistant", "content": "ja\u2028\n"}]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def written(content: bytes) -> Path:
        path = tmp_path / "data.jsonl"
        path.write_bytes(content)
        return path

    return written


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        list(read_records(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_both_forms_are_read_in_order(write: Callable[[bytes], Path]):
    path = write(b'{"id": "a", "text": "x"}\n' + json.dumps({"id": 7, "conversations": CHAT, "more": 1}).encode())
    assert list(read_records(path)) == [
        Record("a", f"{path}:1", text="x"),
        Record("7", f"{path}:2", conversation=tuple(CHAT)),
    ]


@pytest.mark.parametrize("column", ["conversations", "messages"])
def test_all_forms_of_a_conversation_mean_the_same(write: Callable[[bytes], Path], column: str):
    turns = [("system", "be brief"), ("human", "näh?"), ("gpt", "ja")]
    roles = ["system", "user", "assistant"]
    shared = [{"from": speaker, "value": said} for speaker, said in turns]
    plain = [{"role": role, "content": said} for role, (_, said) in zip(roles, turns, strict=True)]
    path = write("".join(json.dumps({column: form}) + "\n" for form in (shared, plain)).encode())
    assert [record.conversation for record in read_records(path)] == [tuple(plain)] * 2


def test_a_thought_is_kept_and_an_empty_one_is_none(write: Callable[[bytes], Path]):
    said = [{"role": "assistant", "content": "a", "reasoning_content": thought} for thought in ("hm", "", None)]
    (record,) = read_records(write(json.dumps({"messages": said}).encode()))
    assert record.conversation == (
        said[0],
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "a"},
    )


def test_blank_lines_are_skipped_and_counted(write: Callable[[bytes], Path]):
    path = write(b'\n  \r\n{"text": "x"}\r\n\n')
    assert list(read_records(path)) == [Record(f"{path}:3", f"{path}:3", text="x")]


def test_what_was_written_is_read_back(tmp_path: Path):
    path = tmp_path / "new" / "data.jsonl"
    write_records(path, [{"id": "a", "conversations": CHAT}, {"id": "b", "text": "é\n\x00😀"}])
    first, second = read_records(path)
    assert first.conversation == tuple(CHAT)
    assert second.text == "é\n\x00😀"


def test_a_failed_write_leaves_what_was_there(tmp_path: Path):
    path = tmp_path / "data.jsonl"
    write_records(path, [{"id": "a", "text": "x"}])
    with pytest.raises(ZeroDivisionError):
        write_records(path, ({"id": str(1 // (1 - n)), "text": "y"} for n in range(2)))
    assert [record.text for record in read_records(path)] == ["x"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"\n \n\n"])
def test_an_empty_file_is_named(write: Callable[[bytes], Path], content: bytes):
    path = write(content)
    assert refusal(path) == f"{path}: the data file is empty; write one JSON record on each line"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{nope}", "not JSON"),
        (b'{"text": "x"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'\xef\xbb\xbf{"text": "x"}', "not JSON (Unexpected UTF-8 BOM"),
        (b'{"text": "caf\xe9"}', "byte 14 is not UTF-8"),
        (b'{"text": "\xed\xa0\x80"}', "byte 11 is not UTF-8"),
        (b'{"text": "ok \\ud83d"}', r"half a character, '\ud83d', is no text"),
        (b'{"id": "\\udc00", "text": "ok"}', r"half a character, '\udc00', is no text"),
        (b"[1]", "a record is a JSON object, not list"),
        (b"null", "a record is a JSON object, not NoneType"),
        (b"{}", "neither 'text' (a string) nor 'messages' or 'conversations' (a list of messages) is there"),
        (b'{"text": 7}', "neither 'text'"),
        (b'{"conversations": []}', "neither 'text'"),
        (b'{"conversations": {"role": "user", "content": "x"}}', "neither 'text'"),
        (b'{"conversations": ["x"]}', "a message has 'role' and 'content' (or 'from' and 'value'), both strings"),
        (b'{"conversations": [{"role": "user"}]}', "a message has"),
        (b'{"conversations": [{"role": "user", "content": null}]}', "a message has"),
        (b'{"conversations": [{"from": "human"}]}', "a message has"),
        (b'{"messages": [{"from": "human", "value": 7}]}', "a message has"),
        (
            b'{"messages": [{"from": "narrator", "value": "x"}]}',
            "a message is from 'narrator'; known are human, user, gpt, assistant, system",
        ),
    ],
)
def test_a_bad_line_is_named_after_those_before_it_were_read(write: Callable[[bytes], Path], line: bytes, reason: str):
    path = write(b'{"text": "x"}\n\n' + line + b'\n{"text": "y"}\n')
    assert refusal(path).startswith(f"{path}:3: {reason}")
    records = read_records(path)
    assert next(records).text == "x"


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path):
    with pytest.raises(StorageError, match=rf"^{tmp_path}/none: No such file"):
        list(read_records(tmp_path / "none"))
    with pytest.raises(StorageError, match=rf"^{tmp_path}: Is a directory"):
        list(read_records(tmp_path))
