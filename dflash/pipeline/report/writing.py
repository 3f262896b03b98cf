"""The page as a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.errors import storage_error
from dflash.pipeline.files import write_text
from dflash.pipeline.report.contents import gather
from dflash.pipeline.report.page import page


def write_report(root: Path, record: Mapping[str, Any], to: Path | None = None) -> Path:
    """Write the report of a run of `root`, whole, as `report.html` in its folder or `to` another file; where it is.

    Raises StorageError.
    """
    path = to or root / "runs" / record["id"] / "report.html"
    text = page(gather(root, record))
    try:
        write_text(path, text)
    except OSError as failure:
        raise storage_error(failure, path) from failure
    return path
