"""What the verbs do that look at runs."""

from __future__ import annotations

from dflash.cli import print_json, root_of


def show(*, run: str, root: str, as_json: bool) -> None:
    """Print a run's record."""
    from dflash.pipeline.record import load_record
    from dflash.pipeline.show import show_record

    record = load_record(root_of(root), run or None)
    if as_json:
        print_json(record)
    else:
        show_record(record, str(root_of(root) / "runs" / record["id"]))


def runs(*, root: str, as_json: bool) -> None:
    """List the runs, oldest first."""
    from dflash.pipeline.record import listed
    from dflash.pipeline.show import show_runs

    records = listed(root_of(root))
    if as_json:
        print_json({"runs": records})
    else:
        show_runs(records)
