"""`metrics.jsonl`, a training's log: one row a step, all of them kept, and beside it the same in few buckets.

Nothing is imported but the standard library: whoever looks at a training needs no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dflash.atomic import whole_file
from dflash.training.sampling import Sampler, kept_buckets, rows_from, samples_beside


class MetricLog:
    """Appends rows; a resumed training drops those that it is about to write again.

    Every row is in the log when `write` is back. Its bucket (see dflash/training/sampling.py) follows when it is full.
    """

    def __init__(self, path: Path, first_step: int) -> None:
        """Rows of steps after `first_step` are dropped, and so is a torn last line. Raises OSError, StorageError."""
        self._beside = samples_beside(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            self._file = opened.enter_context(path.open("ab"))
            self._sampler = Sampler(each for each in kept_buckets(path) if each.last <= first_step)
            self._end = self._sampler.end
            for row, end in rows_from(path, self._end):
                if row["step"] > first_step:
                    break
                self._sampler.take(row, end)
                self._end = end
            # Before the rows are dropped that they must not stand for.
            self._buckets = opened.enter_context(self._written_anew())
            os.truncate(path, self._end)
            opened.pop_all()

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row, which has a `step`. Raises OSError."""
        line = json.dumps(row).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        self._end += len(line)
        what = self._sampler.take(row, self._end)
        if what == "full":
            self._buckets.write(self._sampler.full[-1].as_line())
            self._buckets.flush()
        elif what == "joined":
            self._buckets.close()
            self._buckets = self._written_anew()

    def _written_anew(self) -> Any:
        with whole_file(self._beside) as draft:
            draft.write_text("".join(each.as_line() for each in self._sampler.full), encoding="utf-8")
        return self._beside.open("a", encoding="utf-8")

    def close(self) -> None:
        """Close the files, both of them also on a full disk. Raises OSError."""
        try:
            self._file.close()
        finally:
            self._buckets.close()
