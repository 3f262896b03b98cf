"""Training text as the field writes it: one JSON object a line.

{"id": "a", "conversations": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
{"id": "b", "text": "…"}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.atomic import whole_file
from dflash.errors import DataError, storage_error

Message = Mapping[str, str]


@dataclass(frozen=True)
class Record:
    """One line: either a conversation or a text, never both."""

    id: str
    where: str
    conversation: tuple[Message, ...] = ()
    text: str | None = None


def read_records(path: Path) -> Iterator[Record]:
    """The records of a JSONL file, in order; blank lines are skipped.

    Raises:
        DataError: the file is empty, or a line is not UTF-8, not JSON, or not a record; names `path:line`.
        StorageError: the file can not be read.
    """
    found = False
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if raw.strip():
                    found = True
                    yield parse(raw, f"{path}:{number}")
    except OSError as failure:
        raise storage_error(failure, path) from failure
    if not found:
        raise DataError("the data file is empty", where=str(path), cure="write one JSON record on each line")


def parse(raw: bytes, where: str) -> Record:
    """One line as a record; `where` is named in errors.

    Raises:
        DataError: see `read_records`.
    """
    try:
        document = json.loads(raw.decode("utf-8"))
        # JSON may escape half of a surrogate pair, which no tokenizer takes and no file can hold.
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
    identity = str(document.get("id", where))
    if isinstance(text := document.get("text"), str):
        return Record(identity, where, text=text)
    if isinstance(turns := document.get("conversations"), list) and turns:
        return Record(identity, where, conversation=tuple(_message(turn, where) for turn in turns))
    raise DataError(
        "neither 'text' (a string) nor 'conversations' (a list of messages) is there",
        where=where,
        cure='write {"id", "conversations": [{"role", "content"}]} or {"id", "text"}',
    )


def _message(turn: Any, where: str) -> Message:
    if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
        raise DataError("a message has 'role' and 'content', both strings", where=where)
    return {"role": turn["role"], "content": turn["content"]}


def as_json(record: Record) -> dict[str, Any]:
    """A record as the object it was read from."""
    if record.text is not None:
        return {"id": record.id, "text": record.text}
    return {"id": record.id, "conversations": [dict(message) for message in record.conversation]}


def write_records(path: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSONL file whole."""
    with whole_file(path) as draft, draft.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
