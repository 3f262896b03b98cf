"""Training text as the field writes it: one JSON object a line, or one row of a Parquet file with such columns.

{"id": "a", "messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
{"id": "b", "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
{"id": "c", "text": "…"}

`messages` and `conversations` mean the same, and so do both forms of a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from dflash.atomic import whole_file
from dflash.errors import DataError
from dflash.training.files import PARQUET, read_lines
from dflash.training.parquet import read_rows

Message = Mapping[str, str]
"""`role` and `content`, and `reasoning_content` where an assistant thought before it spoke."""

COLUMNS = ("id", "text", "conversations", "messages")
SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""Roles by ShareGPT's names for them."""


@dataclass(frozen=True)
class Record:
    """One line or row: either a conversation or a text, never both."""

    id: str
    where: str
    conversation: tuple[Message, ...] = ()
    text: str | None = None

    @property
    def file(self) -> str:
        """The path in `where`."""
        return self.where.rpartition(":")[0]


def opening(record: Record) -> list[Message]:
    """What comes before the assistant's first turn; nothing in a text."""
    return list(takewhile(lambda message: message["role"] != "assistant", record.conversation))


def read_records(path: Path) -> Iterator[Record]:
    """The records of one file, in order; blank lines are skipped.

    Raises:
        DataError: the file is empty or damaged, or a line or row is not a record; names `path:line`, `path: row n`.
        StorageError: the file can not be read.
        UsageError: a library that reads this kind of file is not installed.
    """
    return (record for record, _ in _read(path))


class Records:
    """The records of several files, read anew with each iteration. `done` of `total` bytes are read so far."""

    def __init__(self, files: Sequence[Path]) -> None:
        """The files are there."""
        self._sizes = {path: path.stat().st_size for path in files}
        self.done, self.total = 0, sum(self._sizes.values())

    def __iter__(self) -> Iterator[Record]:
        before = 0
        for path, size in self._sizes.items():
            for record, position in _read(path):
                self.done = before + position
                yield record
            before += size


def _read(path: Path) -> Iterator[tuple[Record, int]]:
    """Records, and how many bytes of the file were read by then."""
    found = False
    if path.suffix == PARQUET:
        size = path.stat().st_size if path.exists() else 0
        for number, (row, share) in enumerate(read_rows(path, COLUMNS), start=1):
            found = True
            yield record_of(row, f"{path}: row {number}"), int(share * size)
    else:
        for number, (raw, position) in enumerate(read_lines(path), start=1):
            if raw.strip():
                found = True
                yield parse(raw, f"{path}:{number}"), position
    if not found:
        raise DataError("the data file is empty", where=str(path), cure="write one JSON record on each line")


def parse(raw: bytes, where: str) -> Record:
    """One line as a record; `where` is named in errors.

    Raises:
        DataError: see `read_records`.
    """
    try:
        document = json.loads(raw.decode("utf-8"))
        if rb"\u" in raw:  # JSON may escape half of a surrogate pair, which no tokenizer takes and no file can hold
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as failure:
        raise DataError(f"half a character, {failure.object[failure.start]!a}, is no text", where=where) from failure
    except UnicodeDecodeError as failure:
        raise DataError(
            f"byte {failure.start + 1} is not UTF-8", where=where, cure="save the file as UTF-8"
        ) from failure
    except (ValueError, RecursionError) as failure:
        raise DataError(f"not JSON ({failure})", where=where, cure="write one JSON object on each line") from failure
    if not isinstance(document, dict):
        raise DataError(f"a record is a JSON object, not {type(document).__name__}", where=where)
    return record_of(document, where)


def record_of(document: Mapping[str, Any], where: str) -> Record:
    """A record from its fields; others than `COLUMNS` are passed over, and so is a null.

    Raises:
        DataError: it is none; `where` is named.
    """
    identity = str(document.get("id", where))
    if isinstance(text := document.get("text"), str):
        return Record(identity, where, text=text)
    turns = document.get("conversations") or document.get("messages")
    if isinstance(turns, list) and turns:
        return Record(identity, where, conversation=tuple(_message(turn, where) for turn in turns))
    raise DataError(
        "neither 'text' (a string) nor 'messages' or 'conversations' (a list of messages) is there",
        where=where,
        cure='write {"id", "messages": [{"role", "content"}]} or {"id", "text"}',
    )


def _message(turn: Any, where: str) -> Message:
    names = ("from", "value") if isinstance(turn, dict) and "from" in turn and "role" not in turn else None
    role, content = names or ("role", "content")
    if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in (role, content)):
        raise DataError("a message has 'role' and 'content' (or 'from' and 'value'), both strings", where=where)
    speaker = turn[role]
    if names and speaker not in SPEAKERS:
        raise DataError(f"a message is from {speaker!r}", where=where, cure=f"known are {', '.join(SPEAKERS)}")
    message = {"role": SPEAKERS[speaker] if names else speaker, "content": turn[content]}
    thought = turn.get("reasoning_content")
    return message | ({"reasoning_content": thought} if isinstance(thought, str) and thought else {})


def as_json(record: Record) -> dict[str, Any]:
    """A record as the object it was read from, messages in today's form."""
    if record.text is not None:
        return {"id": record.id, "text": record.text}
    return {"id": record.id, "conversations": [dict(message) for message in record.conversation]}


def write_records(path: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSONL file whole."""
    with whole_file(path) as draft, draft.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
