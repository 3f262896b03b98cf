"""What the verb replay does: a run done once more, and compared with what it was."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import cli, cli_train
from dflash.errors import Diverged, UsageError

if TYPE_CHECKING:
    from dflash.hosts.inventory import Host
    from dflash.pipeline.errand import Errand
    from dflash.pipeline.judging import Comparison
    from dflash.pipeline.replay import Replay
    from dflash.pipeline.verdict import Verdict


def replay(
    *,
    run: str,
    host: str,
    root: str,
    plan: bool,
    accept: Sequence[str],
    noise: int,
    wheels: str,
    as_json: bool,
) -> None:
    """Say what would be different, do a run again, and say what was. Exits with 0 when the numbers are the same, or
    within the machine's own noise; with 11 when they or files are others, or nothing can be compared; with 3 when
    something keeps it from being a replay."""
    from dflash.hosts.inventory import find_host
    from dflash.pipeline.judging import compared
    from dflash.pipeline.record import load_record
    from dflash.pipeline.replay import begins_in, probe, replay_of, require, require_fields
    from dflash.pipeline.restoring import restored

    if noise < 0:
        raise UsageError("a number of replays is at least 0", where=f"--noise {noise}", cure="try --noise 1")
    folder, there = cli.root_of(root), find_host(host, cli.HOME / "hosts.yaml")
    if there.chain.is_local and not there.root:
        there = replace(there, root=str(folder))
    wheelhouse = Path(wheels).absolute() if wheels else None
    record = load_record(folder, run)
    home = folder / "runs" / record["id"]
    with contextlib.chdir(begins_in(home)):
        with restored(home) as source:
            wanted = replay_of(record, home, source, there)
            with _reached(there) as connection:
                seen, texts = probe(connection, wanted, folder)
            require_fields(accept, wanted, seen)
            found = compared(record, wanted.lines, seen, texts, accept)
            _show_comparison(found, f"{there.name} is compared with run {record['id']}", as_json)
            if as_json and (plan or found.blocking):
                cli.print_json({"run": record["id"], "host": there.name, **_plain(found)})
            require(found, record["id"])
            if plan:
                return
            errand = _begun(wanted, folder, accept, wheelhouse)
        first = _ended(errand, folder, accept)  # after days, perhaps: nothing is held meanwhile
        for _ in range(noise):
            with restored(home) as source:
                errand = _begun(replay_of(record, home, source, there), folder, accept, wheelhouse)
            _ended(errand, folder, accept)
    _say(record["id"], there.name, folder, first, accept, as_json)


def _reached(host: Host) -> Any:
    from dflash.hosts.reach import reach

    return reach(host.chain)


def _begun(wanted: Replay, root: Path, accept: Sequence[str], wheels: Path | None) -> Errand:
    """Have all there that it takes to do the run again, and begin."""
    from dflash.pipeline.launching import launch
    from dflash.pipeline.replay import made_ready

    with _reached(wanted.host) as connection:
        told = _teller(wanted.host)
        errand, _ = launch(connection, made_ready(connection, wanted, root, told, accept, wheels), root)
        told(f"run {errand.run} does {wanted.record['id']} again, as job {errand.job}")
    return errand


def _ended(errand: Errand, root: Path, accept: Sequence[str]) -> str:
    """Follow a replay to its end, and judge it; its id."""
    from dflash.pipeline.judging import judge

    job, failure = cli_train.looked_on(errand, root)
    if failure:
        raise failure
    if job.code:
        sys.exit(job.code)
    judge(root, errand.run, errand.request["replays"], accept)
    return errand.run


def _say(of: str, host: str, root: Path, run: str, accept: Sequence[str], as_json: bool) -> None:
    """The verdict on the replay, once all there are to know the noise from have been."""
    from dflash.pipeline.judging import judge

    verdict, found = judge(root, run, of, accept)
    _show_comparison(found, f"run {run} is compared with run {of}", as_json)
    if as_json:
        told = {"run": of, "host": host, "replay": run}
        cli.print_json({**told, **_plain(found), "verdict": {**verdict.to_json(), "said": str(verdict)}})
    else:
        print(verdict)
        if verdict.noise:
            print(verdict.noise)
    if not verdict.is_good:
        raise Diverged(str(verdict), where=f"run {run}", cure=_cure(verdict, of, run))


def _cure(verdict: Verdict, of: str, run: str) -> str:
    from dflash.pipeline.verdict import NOTHING_MADE

    if verdict.cause == NOTHING_MADE:
        return "have a step leave what it finds in a file, other than .json, .jsonl, .log and .md, which may hold times"
    if verdict.kind == "not comparable":
        return "keep the metrics of the run: its folder below work/, or runs/"
    known = "" if verdict.noise else "; --noise 1 tells whether this machine gives the same twice"
    return f"./inv compare {of} {run} shows both{known}"


def _plain(found: Comparison) -> dict[str, Any]:
    return {"same": found.same, "differences": [vars(each) for each in found.differences]}


def _show_comparison(found: Comparison, heading: str, as_json: bool) -> None:
    """A line for each field that differs; of the others only how many there are."""
    from rich.table import Table
    from rich.text import Text

    from dflash.pipeline.show import console_on

    if as_json:
        return
    console = console_on(sys.stdout)
    console.print(Text(f"{heading}: {found.same} fields are the same, {len(found.differences)} are not"))
    if not found.differences:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("field", "run", "now", "", "what it means"):
        table.add_column(name, overflow="fold")
    for each in found.differences:
        mark = Text(each.severity, "red" if each.severity == "blocking" else "yellow")
        table.add_row(Text(each.field), Text(_short(each.old)), Text(_short(each.new)), mark, Text(each.cause))
    console.print(table)


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else text[:12] + "…"


def _teller(host: Host) -> Any:
    def tell(line: str) -> None:
        print(f"{host.name}: {line}", file=sys.stderr, flush=True)

    return tell
