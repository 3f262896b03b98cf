"""What came of a run that was done again: compared with what came of the run, and kept in the new run's record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash.atomic import write_json
from dflash.errors import DataError, DFlashError, storage_error
from dflash.pipeline.comparing import Difference, compare, same, with_lines
from dflash.pipeline.provenance.artifacts import METRICS, metrics
from dflash.pipeline.provenance.hashes import Hashes
from dflash.pipeline.provenance.lines import Lines, first_other, kept
from dflash.pipeline.record import load_record, runs
from dflash.pipeline.report.contents import metrics_of
from dflash.pipeline.rows import Log
from dflash.pipeline.share import own_share
from dflash.pipeline.verdict import Made, Verdict, judged


@dataclass(frozen=True)
class Comparison:
    """What is the same, as a count, and what is not."""

    same: int
    differences: tuple[Difference, ...]

    @property
    def blocking(self) -> tuple[Difference, ...]:
        return tuple(each for each in self.differences if each.severity == "blocking")


def compared(
    old: Mapping[str, Any], texts: Lines, new: Mapping[str, Any], seen: Lines, accepted: Sequence[str]
) -> Comparison:
    """A run's record against another, or a probe; `texts` and `seen` are the lines of the texts that were read for
    each."""
    found = compare(old, new, accepted)
    told = with_lines(found, lambda step, name: first_other(texts, seen, step, name))
    return Comparison(same(old, new), tuple(told))


def judge(root: Path, run: str, of: str, accepted: Sequence[str]) -> tuple[Verdict, Comparison]:
    """Compare the finished replay `run` with the run `of`, and keep the verdict in its record.

    Raises:
        UsageError: one of them is not there. DataError: a record or its rows are damaged. StorageError.
    """
    old, record = load_record(root, of), load_record(root, run)
    if "provenance" not in record:
        raise DataError("its record does not say what it was made from", where=f"run {run}")
    home = root / "runs"
    found = compared(old, kept(home / of), record, kept(home / run), accepted)
    verdict = judged(made_by(root, old), made_by(root, record), found.differences, list(_others_like(root, of, record)))
    if verdict.kind == "not comparable" and (lost := _overwritten(root, old)):
        cause = f"the metrics of step {lost[0]} are those of a later run now, which made it again in the same folder"
        verdict = replace(verdict, cause=cause)
    record["replay"] = {
        "of": of,
        "accepted": list(accepted),
        "same": found.same,
        "differences": [vars(each) for each in found.differences],
        "verdict": verdict.to_json(),
        "said": str(verdict),
    }
    try:
        write_json(home / run / "record.json", record)
    except OSError as failure:
        raise storage_error(failure, home / run / "record.json") from failure
    return verdict, found


def made_by(root: Path, record: Mapping[str, Any]) -> Made:
    """What a run made, as far as it is here: the rows of each step that wrote some, and that nobody has made again; of
    a training that a later run went on with, those up to there. They are read when somebody goes through them.

    Raises DataError, StorageError.
    """
    lost, rows = _overwritten(root, record), {}
    for step in record["steps"]:
        file = _file(root, record, step)
        if file and step["name"] not in lost:
            log = Log(file, own_share(root, record, step, file).last if step["kind"] == "train" else None)
            if any(True for _ in log):
                rows[step["name"]] = log
    return Made(rows, record)


def _file(root: Path, record: Mapping[str, Any], step: Mapping[str, Any]) -> Path | None:
    """Where a step's rows are, if it has any."""
    file = metrics_of(root, record, step) if step["kind"] == "train" else root / step["folder"] / METRICS
    return file if file.is_file() else None


def _overwritten(root: Path, record: Mapping[str, Any]) -> list[str]:
    """The steps whose folder has other rows than the run saw: it was damaged or deleted, and made again."""
    known = record["provenance"]["metrics"] if record.get("provenance") else {}
    found = []
    with Hashes(root) as hashes:
        for step in record["steps"]:
            file, before = _file(root, record, step), known.get(step["name"])
            if before and file and file.parent == root / step["folder"]:
                now = metrics(file.parent, hashes)
                if now and now["digest"] != before["digest"]:
                    found.append(step["name"])
    return found


def _others_like(root: Path, of: str, new: Mapping[str, Any]) -> Iterator[Made]:
    """The other replays of the same run on the same host, from which `new` differs in nothing that is known: where data
    or a flag is another, numbers that differ are no noise. What is damaged of an earlier one takes no later verdict."""
    for each in runs(root):
        try:
            record = load_record(root, each)
            told = record.get("replay") or {}
            is_like = told.get("of") == of and record["host"] == new["host"] and record["status"] == "ok"
            if each != new["id"] and is_like and not compare(record, new):
                made = made_by(root, record)
                for log in made.rows.values():
                    deque(log, maxlen=0)  # before others are compared with it
                yield made
        except DFlashError:
            continue
