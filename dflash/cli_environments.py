"""What the verbs env.* do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dflash.cli import HOME, print_json
from dflash.cli_hosts import Answers, everywhere, hosts_of
from dflash.errors import EnvironmentMismatch, UsageError
from dflash.hosts.inventory import Host
from dflash.validation import suggestion

if TYPE_CHECKING:
    from dflash.environments.diff import Description
    from dflash.environments.remote import HostEnvironments
    from dflash.environments.snapshot import Mode
    from dflash.finding import Finding

T = TypeVar("T")
ENVS = HOME / "envs"


def folder_of(name: str) -> Path:
    """The declaration of an environment. Raises UsageError for a name that is not there."""
    known = sorted(path.parent.name for path in ENVS.glob("*/env.yaml"))
    if name not in known:
        raise UsageError(
            f"there is no environment {name!r}", where="envs", cure=suggestion(name, known, "environments")
        )
    return ENVS / name


def lock(*, name: str, upgrade: Sequence[str], check: bool, as_json: bool) -> None:
    """Make a lock again, or say whether it is stale; exits with 3 if it is."""
    from dflash.environments.locking import relock, stale

    folder = folder_of(name)
    if check:
        reasons = stale(folder)
        if as_json:
            print_json({"name": name, "stale": bool(reasons), "why": reasons})
        else:
            for reason in reasons or ["the lock is what its inputs ask for"]:
                print(f"{name}: {reason}")
        sys.exit(EnvironmentMismatch.exit_code if reasons else 0)
    changes = relock(folder, upgrade)
    if as_json:
        print_json({"name": name, "changes": [change.__dict__ for change in changes]})
        return
    for change in changes:
        print(change)
    print(f"{name}: {len(changes)} versions changed" if changes else f"{name}: no version changed")


def create(*, name: str, host: str, wheels: str, again: bool, as_json: bool) -> None:
    """Make the generation of a lock on a host, or on several."""
    folder, found = folder_of(name), []

    def make(environments: HostEnvironments) -> dict[str, Any]:
        begun = time.monotonic()
        made = environments.create(folder, wheels=Path(wheels) if wheels else None, again=again)
        return {**made.__dict__, "wall_s": round(time.monotonic() - begun, 2)}

    answers = _on_hosts(host, make)
    for each, made in answers:
        found.append({"host": each.name, **made})
        if not as_json:
            what = f"made in {made['seconds']:.1f} s" if made["made"] else "there already"
            switch = f"./inv env.use {name} --generation {made['id']} --host {each.name}"
            print(f"{each.name}: {name} {made['id']}: {what}; {switch}")
    if as_json:
        print_json({"made": found})
    answers.leave()


def use(*, name: str, wanted: str, host: str) -> None:
    """Switch a host to a generation; by default the newest of the declared lock."""
    from dflash.environments.lock import read_lock
    from dflash.environments.remote import ID_LENGTH

    # One character short of an id, so that of several from one lock the newest is meant.
    wanted = wanted or read_lock(folder_of(name) / "requirements.lock").id[: ID_LENGTH - 1]
    answers = _on_hosts(host, lambda environments: environments.use(name, wanted))
    for each, done in answers:
        _say_switch(each, done)
    answers.leave()


def rollback(*, name: str, host: str) -> None:
    """Switch a host back to the generation used before."""
    answers = _on_hosts(host, lambda environments: environments.rollback(name))
    for each, done in answers:
        _say_switch(each, done)
    answers.leave()


def pin(*, name: str, wanted: str, run: str, release: bool, host: str) -> None:
    """Keep a generation for a run, by default the one in use; or let go of what the run had pinned."""
    wanted = "" if release else wanted or "current"
    answers = _on_hosts(host, lambda environments: environments.pin(name, wanted, run))
    for each, done in answers:
        print(f"{each.name}: run {run} needs {done['id'] or 'no generation of ' + name}")
    answers.leave()


def listed(*, host: str, as_json: bool) -> None:
    """The generations on a host."""
    answers = _on_hosts(host, lambda environments: environments.listed())
    rows = [(each, row) for each, its in answers for row in its]
    if as_json:
        print_json({"generations": [{"host": each.name, **row} for each, row in rows]})
    else:
        for each, row in rows:
            state = "in use" if row["current"] else "" if row["finished"] else "half-made, never used"
            pinned = f"pinned by {', '.join(row['pinned'])}" if row["pinned"] else ""
            size = f"Python {row['python']}, {row['bytes'] / 1e9:.2f} GB" if row["finished"] else ""
            print("  ".join(word for word in (each.name, row["name"], row["id"], size, state, pinned) if word))
    answers.leave()


def gc(*, name: str, host: str, as_json: bool) -> None:
    """Remove the generations that nobody needs."""
    answers = _on_hosts(host, lambda environments: environments.gc(name))
    rows = [(each, row) for each, its in answers for row in its]
    if as_json:
        print_json({"generations": [{"host": each.name, **row} for each, row in rows]})
    else:
        for each, row in rows:
            done = f"removed, {row['bytes'] / 1e9:.2f} GB" if row["removed"] else "kept"
            print(f"{each.name}  {row['name']}  {row['id']}  {done}: {row['why']}")
    answers.leave()


def mode_of(quick: bool, cached: bool) -> Mode:
    """How to compare files. Raises UsageError for both at once."""
    if quick and cached:
        raise UsageError("--quick and --cached are two ways to compare", cure="give one of them")
    return "quick" if quick else "cached" if cached else "full"


def verify(*, name: str, host: str, mode: Mode, as_json: bool) -> None:
    """Compare what is in use on a host with its locks; exits with 3 if training must not start."""
    from dflash.finding import worst_first
    from dflash.pipeline.show import console_on
    from dflash.provision.table import print_table

    known = name and folder_of(name)  # a name that is not there is said before a host is reached

    def look(each: Host, environments: HostEnvironments) -> list[tuple[str, list[Finding]]]:
        used = _in_use(each, environments, name)
        return [
            (f"{which} on {each.name}", worst_first(environments.verify(known or folder_of(which), prefix, mode)[0]))
            for which, prefix in used
        ]

    answers = everywhere(hosts_of(host), _opened(look))
    found = [row for _, rows in answers for row in rows]
    if as_json:
        rows = [{"environment": what, "findings": [each.to_json() for each in findings]} for what, findings in found]
        print_json({"environments": rows, "ok": not _blocking(found)})
    else:
        for what, findings in found:
            console_on().print(what, style="bold", highlight=False)
            print_table(findings, console_on())
    sys.exit(EnvironmentMismatch.exit_code if _blocking(found) else answers.status)


def _blocking(found: Sequence[tuple[str, list[Finding]]]) -> bool:
    return any(each.severity == "block" for _, findings in found for each in findings)


def _in_use(host: Host, environments: HostEnvironments, name: str) -> list[tuple[str, str]]:
    """(name, path) of the generations in use on a host, and of this machine's own .venv."""
    used = [(row["name"], row["path"]) for row in environments.listed() if row["current"]]
    if host.chain.is_local:
        used.append(("local", str(HOME / ".venv")))
    found = [each for each in used if name in ("", each[0])]
    if not found:
        what = f"no generation of {name} is in use there" if name else "no environment is in use there"
        raise UsageError(what, where=host.name, cure=f"./inv env.create NAME --host {host.name}, then env.use")
    return found


def diff(*, a: str, b: str, root: str, everything: bool, as_json: bool) -> None:
    """Compare two environments, hosts or runs; exits with 3 if a difference blocks."""
    from rich.table import Table
    from rich.text import Text

    from dflash.environments.diff import compare
    from dflash.pipeline.show import console_on

    first = _described(a, root)
    second = _described(b, root, first)
    sides = _described(a, root, second), second
    differences = compare(*sides)
    if as_json:
        print_json({"a": sides[0].name, "b": sides[1].name, "differences": [each.to_json() for each in differences]})
    else:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for heading in ("", "what", sides[0].name, sides[1].name, "why"):
            table.add_column(heading, overflow="fold")
        for each in differences:
            if each.verdict != "same" or everything:
                words = (each.verdict, each.field, each.a or "-", each.b or "-", each.why)
                table.add_row(*(Text(word) for word in words))
        console_on().print(table)
        same = sum(each.verdict == "same" for each in differences)
        print(f"{len(differences)} compared, {same} the same")
    sys.exit(EnvironmentMismatch.exit_code if any(each.verdict == "blocking" for each in differences) else 0)


def _described(text: str, root: str, beside: Description | None = None) -> Description:
    """`NAME` is a declaration, for the Python of what is `beside` it; `NAME@HOST` the generation in use there; a run's
    id that run."""
    from dflash.cli import root_of
    from dflash.environments.diff import of_declaration, of_reading, of_run
    from dflash.environments.lock import read_lock
    from dflash.environments.remote import on_host
    from dflash.environments.spec import read_spec
    from dflash.pipeline.record import load_record, runs

    name, at, host = text.partition("@")
    if at:
        folder = folder_of(name)
        each, *others = hosts_of(host)
        if others:
            raise UsageError("one side is one host", where=text, cure="compare two at a time")
        with on_host(each, _tell) as environments:
            ((_, prefix), *_) = _in_use(each, environments, name)
            return of_reading(text, read_spec(folder / "env.yaml"), environments.read(prefix, "cached"))
    if (ENVS / text / "env.yaml").exists():
        spec, lock = read_spec(ENVS / text / "env.yaml"), read_lock(ENVS / text / "requirements.lock")
        return of_declaration(spec, lock, beside)
    if text in runs(root_of(root)):
        record = load_record(root_of(root), text)
        return of_run(record, *_declared_at(str(record.get("commit")), str(record.get("lock_id"))))
    known = [path.parent.name for path in ENVS.glob("*/env.yaml")]
    hint = suggestion(text, known, "environments")
    raise UsageError(f"{text!r} is no environment, no NAME@HOST and no run", cure=hint)


def _declared_at(commit: str, lock_id: str) -> tuple[Any, Any]:
    """The declaration that a run's lock id means: today's, or that of its commit; (None, None) when it is gone."""
    from dflash.environments.lock import parse_lock, read_lock
    from dflash.environments.spec import read_spec

    for path in ENVS.glob("*/requirements.lock"):
        spec, today = read_spec(path.with_name("env.yaml")), read_lock(path)
        if today.id == lock_id:
            return spec, today
        relative = path.relative_to(HOME)
        shown = subprocess.run(["git", "show", f"{commit}:{relative}"], cwd=HOME, capture_output=True, check=False)
        if shown.returncode == 0 and (then := parse_lock(shown.stdout, relative)).id == lock_id:
            return spec, then
    return None, None


def wheelhouse(*, name: str, to: str, as_json: bool) -> None:
    """Fill a folder with an environment's wheels, and prove that it can be made from them with no network."""
    from dflash.environments.wheelhouse import fill

    made = fill(folder_of(name), Path(to) if to else HOME / "wheelhouse" / name, _tell)
    if as_json:
        print_json({**made.__dict__, "folder": str(made.folder)})
        return
    proof = {True: "made from it with no network", None: "not tried: this machine lets nobody make a network namespace"}
    print(f"{made.folder}: {made.files} files, {made.bytes / 1e9:.2f} GB; {proof[made.proved]}")


def _opened(body: Callable[[Host, HostEnvironments], T]) -> Callable[[Host], T]:
    """`body` with the environments of its host, over a connection that ends with it."""
    from dflash.environments.remote import on_host

    def opened(host: Host) -> T:
        with on_host(host, _tell) as environments:
            return body(host, environments)

    return opened


def _on_hosts(text: str, body: Callable[[HostEnvironments], T]) -> Answers[T]:
    """What `body` gave for the environments of each host in `text`."""
    return everywhere(hosts_of(text), _opened(lambda _, environments: body(environments)))


def _say_switch(host: Host, done: dict[str, Any]) -> None:
    before = f"{done['before']} -> " if done["before"] and done["before"] != done["current"] else ""
    print(f"{host.name}: {done['name']}: {before}{done['current']}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
