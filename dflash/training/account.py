"""What became of the text: how much is trained on, what was cut or dropped and why, file by file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash.training.encoding import Encoded
from dflash.training.packing import Rows
from dflash.training.records import Record


@dataclass
class Tally:
    """Sums over documents: how many, their tokens, how many were cut and what that lost, and why others were left."""

    documents: int = 0
    tokens: int = 0
    trainable: int = 0
    cut: int = 0
    lost: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def take(self, document: Encoded | None, reason: str | None) -> None:
        """Count one document, or one that was dropped."""
        if document is None:
            self.dropped[str(reason)] += 1
            return
        self.documents += 1
        self.tokens += len(document.tokens)
        self.trainable += int(document.trainable.sum())
        self.cut += document.lost > 0
        self.lost += document.lost

    def figures(self) -> dict[str, Any]:
        """The sums as plain values."""
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "trainable_tokens": self.trainable,
            "cut": {"documents": self.cut, "tokens": self.lost},
            "dropped": dict(sorted(self.dropped.items())),
        }


class Account:
    """Counts as documents and rows pass by: constant memory, but for one `Tally` a file."""

    def __init__(self) -> None:
        self.all = Tally()
        self._files: dict[str, Tally] = {}
        self._rows: Counter[int] = Counter()
        self._anchors, self._fewest, self._most = 0, 0, 0

    def take(self, record: Record, document: Encoded | None, reason: str | None) -> None:
        """Count a record that became `document`, or was dropped for `reason`."""
        if document is not None:
            # Where a block may start: see `anchor_candidates` in batches.py.
            anchors = int((document.trainable[:-1] & document.trainable[1:]).sum())
            self._fewest = min(anchors, self._fewest) if self.all.documents else anchors
            self._most = max(anchors, self._most)
            self._anchors += anchors
        self.all.take(document, reason)
        self._files.setdefault(record.file, Tally()).take(document, reason)

    def pack(self, packed: Mapping[int, Rows]) -> None:
        """Count rows."""
        self._rows.update({bucket: len(rows) for bucket, rows in packed.items()})

    def reasons(self) -> list[str]:
        """Why documents were dropped, each with its count."""
        return [f"{count} x {reason}" for reason, count in sorted(self.all.dropped.items())]

    def report(self, buckets: Sequence[int]) -> dict[str, Any]:
        """All figures as plain values. `filled` is the share of the rows' room that holds documents; `anchors` are the
        places where a block may start: all, and the fewest, mean and most of a document."""
        room = sum(count * bucket for bucket, count in self._rows.items())
        per_document = {
            "fewest": self._fewest,
            "mean": round(self._anchors / max(1, self.all.documents), 1),
            "most": self._most,
        }
        return {
            **self.all.figures(),
            "trainable_share": round(self.all.trainable / max(1, self.all.tokens), 4),
            "buckets": list(buckets),
            "rows": {str(bucket): count for bucket, count in sorted(self._rows.items())},
            "filled": round(self.all.tokens / max(1, room), 4),
            "anchors": {"possible": self._anchors, "per_document": per_document},
            "sources": {file: tally.figures() for file, tally in self._files.items()},
        }
