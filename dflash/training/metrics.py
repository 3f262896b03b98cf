"""What a step measured: sums that add up over ranks, and the log they are written to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash.atomic import whole_file
from dflash.errors import storage_error
from dflash.training.regions import Labels, Outcome


class Sums:
    """Names for the places of one flat vector, so that a step's figures cross the ranks in a single sum."""

    def __init__(self, block: int) -> None:
        self.slots = block - 1
        self.size = 5 + 2 * self.slots

    def of(self, outcome: Outcome, wanted: Labels, tokens: int, *, stop: bool) -> Tensor:
        """One rank's figures (size,), float64: exact for counts below 2**53."""
        used = wanted.valid.any(-1)
        measured = torch.stack((outcome.loss.detach().double(), (outcome.accepted * used).sum(), used.sum()))
        known = torch.tensor([tokens, stop], dtype=torch.double, device=measured.device)
        right = (outcome.correct & wanted.valid).sum(0)
        return torch.cat((measured, known, right.double(), wanted.valid.sum(0).double()))

    def read(self, total: Tensor, weight: float) -> dict[str, Any]:
        """The step's figures from the sum over ranks; `weight` is the sum of all label weights."""
        loss, gained, blocks, tokens, stop = total[:5].tolist()
        right, valid = total[5 : 5 + self.slots], total[5 + self.slots :]
        return {
            "loss": loss / max(weight, 1e-12),
            "accuracy": (right / valid.clamp(min=1)).tolist(),
            "accept_len": gained / max(blocks, 1.0),
            "tokens": int(tokens),
            "stop": bool(stop),
        }


class MetricLog:
    """`metrics.jsonl`: one row a step, appended; a resumed training drops the rows it is about to write again."""

    def __init__(self, path: Path, first_step: int) -> None:
        kept = [row for row in read_metrics(path) if row["step"] <= first_step]
        with whole_file(path) as draft:
            draft.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        self._file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metric log; a torn last line, left by a killed writer, is passed over."""
    rows: list[dict[str, Any]] = []
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    break
    except FileNotFoundError:
        return []
    except OSError as failure:
        raise storage_error(failure, path) from failure
    return rows
