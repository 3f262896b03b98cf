"""What the verbs do that look at runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.cli import print_json, root_of
from dflash.errors import UsageError
from dflash.validation import suggestion

if TYPE_CHECKING:
    from dflash.pipeline.removing import Removal


def show(*, run: str, root: str, as_json: bool) -> None:
    """Print a run's record."""
    from dflash.pipeline.record import load_record
    from dflash.pipeline.show import show_record

    record = load_record(root_of(root), run or None)
    if as_json:
        print_json(record)
    else:
        show_record(record, str(root_of(root) / "runs" / record["id"]))


def runs(*, pipeline: str, status: str, root: str, as_json: bool) -> None:
    """List the runs, oldest first: all, or those of a pipeline, or of a status."""
    from dflash.pipeline.record import STATUSES, listed
    from dflash.pipeline.show import show_runs

    if status and status not in STATUSES:
        cure = suggestion(status, STATUSES, "statuses")
        raise UsageError(f"there is no status {status!r}", where="--status", cure=cure)
    known = listed(root_of(root), whole=as_json)
    records = [
        each
        for each in known
        if (not pipeline or each["pipeline"] == pipeline) and (not status or each["status"] == status)
    ]
    if as_json:
        print_json({"runs": records})
    elif known and not records:
        print(
            f"no run{f' of {pipeline}' if pipeline else ''} is {status or 'there'}; ./inv runs lists all {len(known)}"
        )
    else:
        show_runs(records)


def compare(*, a: str, b: str, root: str, as_json: bool) -> None:
    """Show two runs side by side."""
    from dflash.pipeline.record import load_record
    from dflash.pipeline.show import show_comparison
    from dflash.pipeline.sidebyside import side_by_side

    folder = root_of(root)
    found = side_by_side(folder, load_record(folder, a), load_record(folder, b))
    if as_json:
        print_json(found.as_json())
    else:
        show_comparison(found)


def remove(*, wanted: Sequence[str], outputs: bool, root: str, preview: bool) -> None:
    """Delete runs, and say what that frees; or only say it."""
    from dflash.pipeline.removing import left_there, plan_removal
    from dflash.pipeline.removing import remove as delete
    from dflash.pipeline.show import show_removals

    if not wanted:
        raise UsageError("no run is named", cure="name one or more: ./inv rm RUN; ./inv runs lists them")
    folder = root_of(root)
    removals = plan_removal(folder, wanted, outputs=outputs)
    show_removals(removals)
    for line in filter(None, (left_there(folder, run) for run in wanted)):
        print(line)
    if preview:
        print(f"would free {_megabytes(removals)}; nothing was deleted")
        return
    print(f"freed {_megabytes(delete(folder, removals))}")


def _megabytes(removals: Sequence[Removal]) -> str:
    return f"{sum(each.bytes for each in removals) / 1e6:,.1f} MB"


def report(*, run: str, root: str, out: str, to: str, python: str) -> None:
    """Write a run's report, and say where it is; or write the run for another program to show."""
    from dflash.pipeline.record import load_record
    from dflash.pipeline.report.writing import write_report

    folder = root_of(root)
    record = load_record(folder, run or None)
    if to:
        _track(folder, record, to, out, python)
        return
    print(write_report(folder, record, Path(out).expanduser() if out else None))


def _track(root: Path, record: Mapping[str, Any], to: str, place: str, python: str) -> None:
    from dflash.pipeline.report.tracking import PACKAGES, track

    if to not in PACKAGES:
        raise UsageError(f"there is no {to!r} to write to", where="--to", cure=suggestion(to, PACKAGES, "choices"))
    if not place:
        raise UsageError("--out is missing", cure="name a folder, or for MLflow a tracking URI")
    track(root, record, to, place, python)
    print(f"{record['id']}: written for {to} to {place}")
