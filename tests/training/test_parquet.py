"""Parquet files: the same records as JSONL gives, a few at a time, and the row that is named when it is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyarrow import parquet

from dflash.errors import DataError, StorageError, UsageError
from dflash.training.records import Record, Records, read_records

CHAT = [{"role": "user", "content": "näh?"}, {"role": "assistant", "content": "ja 😀"}]
SHARED = [{"from": "human", "value": "näh?"}, {"from": "gpt", "value": "ja 😀"}]


def written(path: Path, rows: list[dict[str, Any]], group: int = 1000) -> Path:
    parquet.write_table(arrow.Table.from_pylist(rows), path, row_group_size=group, write_page_checksum=True)
    return path


@pytest.mark.parametrize(("column", "form"), [("messages", CHAT), ("conversations", SHARED), ("conversations", CHAT)])
def test_a_conversation_of_every_form_is_read(tmp_path: Path, column: str, form: list[dict[str, str]]):
    path = written(tmp_path / "a.parquet", [{"id": 7, column: form, "score": 0.5}, {"id": 8, column: form}])
    assert list(read_records(path)) == [
        Record("7", f"{path}: row 1", conversation=tuple(CHAT)),
        Record("8", f"{path}: row 2", conversation=tuple(CHAT)),
    ]


def test_texts_and_conversations_may_be_mixed(tmp_path: Path):
    """A table has every column in every row: what a row does not have is null there."""
    path = written(tmp_path / "a.parquet", [{"text": "x", "messages": None}, {"text": None, "messages": CHAT}])
    first, second = read_records(path)
    assert (first.text, first.conversation, first.id) == ("x", (), f"{path}: row 1")
    assert (second.text, second.conversation) == (None, tuple(CHAT))
    assert second.file == str(path)


def test_all_rows_of_all_groups_come_in_order_beside_files_of_another_kind(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": "first"}\n')
    written(tmp_path / "b.parquet", [{"text": str(number)} for number in range(1000)], group=70)
    records = Records([tmp_path / "a.jsonl", tmp_path / "b.parquet"])
    assert [record.text for record in records] == ["first", *map(str, range(1000))]
    assert records.done == records.total


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"text": "x"}, {"text": None}], "row 2: neither 'text' (a string) nor 'messages'"),
        ([{"messages": CHAT}, {"messages": []}], "row 2: neither 'text'"),
        ([{"messages": CHAT}, {"messages": [{"role": "user", "content": None}]}], "row 2: a message has 'role' and"),
        ([{"messages": '[{"role": "user"}]'}], "row 1: neither 'text'"),
        ([{"prompt": "x", "id": "a"}], "no column is called text or conversations or messages (there are: prompt, id)"),
        ([], "the data file is empty"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, rows: list[dict[str, Any]], reason: str):
    path = tmp_path / "a.parquet"
    table = arrow.Table.from_pylist(rows) if rows else arrow.table({"text": arrow.array([], arrow.string())})
    parquet.write_table(table, path)
    with pytest.raises(DataError) as caught:
        list(read_records(path))
    assert str(caught.value).startswith(f"{path}: {reason}")


def test_a_file_that_is_not_parquet_or_damaged_is_named(tmp_path: Path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b'{"text": "x"}\n')
    with pytest.raises(DataError, match=rf"^{path}: not a Parquet file that can be read \("):
        list(read_records(path))
    written(path, [{"text": str(number) * 50} for number in range(1000)], group=300)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^{path}: row \d+: not a Parquet file that can be read \("):
        list(read_records(path))
    with pytest.raises(StorageError, match=rf"^{tmp_path}/none.parquet: No such file"):
        list(read_records(tmp_path / "none.parquet"))


def test_without_pyarrow_the_cure_is_said_and_all_else_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path / "a.parquet", [{"text": "x"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=rf"^{path}: Parquet needs pyarrow.*; install it, or write JSONL$"):
        list(read_records(path))
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    assert [record.text for record in read_records(tmp_path / "a.jsonl")] == ["x"]
