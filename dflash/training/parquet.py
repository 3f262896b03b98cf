"""Rows of Parquet files, a few at a time. pyarrow is imported only where such a file is read."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from dflash.errors import DataError, UsageError, storage_error

_ROWS = 256
_BUFFER = 2**20
"""Bytes read of a column at a time: without it, a whole column of a row group is read at once."""


def read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], float]]:
    """Each row's values of those `columns` that are there and not null, and the share of the rows read by then.

    Raises:
        DataError: not a Parquet file, a damaged one, or one without any of `columns`.
        StorageError: the file can not be read.
        UsageError: pyarrow is not installed.
    """
    try:
        with path.open("rb"):
            pass  # the system's reason, which pyarrow would put in words of its own
    except OSError as failure:
        raise storage_error(failure, path) from failure
    arrow = _library(path)
    batches = _batches(arrow, path, columns)
    number = 0
    while True:
        try:
            rows, total = next(batches)
        except StopIteration:
            return
        except (arrow.ArrowException, ValueError, OSError) as failure:
            what = f"not a Parquet file that can be read ({failure})"
            raise DataError(what, where=f"{path}: row {number + 1}" if number else str(path)) from failure
        for row in rows:
            number += 1
            yield {name: value for name, value in row.items() if value is not None}, number / total


def _batches(arrow: ModuleType, path: Path, columns: tuple[str, ...]) -> Iterator[tuple[list[dict[str, Any]], int]]:
    parquet = importlib.import_module("pyarrow.parquet")
    settings = {"buffer_size": _BUFFER, "pre_buffer": False, "page_checksum_verification": True}
    with parquet.ParquetFile(path, **settings) as file:
        present = [name for name in file.schema_arrow.names if name in columns]
        if not set(present) - {"id"}:
            have = ", ".join(file.schema_arrow.names)
            raise DataError(f"no column is called {' or '.join(columns[1:])} (there are: {have})", where=str(path))
        for batch in file.iter_batches(batch_size=_ROWS, columns=present, use_threads=False):
            yield batch.to_pylist(), file.metadata.num_rows


def _library(path: Path) -> ModuleType:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as failure:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed", where=str(path), cure="install it, or write JSONL"
        ) from failure
