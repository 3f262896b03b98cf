"""A run done once more, here or elsewhere: what would be different is known before it starts, and what came of it is
compared with what came of the run.

probe -> compare -> prepare -> launch -> judge: the steps of it that reach a host are here, what is decided is pure
(dflash/pipeline/comparing.py, dflash/pipeline/verdict.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from dflash.atomic import write_json
from dflash.environments.lock import read_lock
from dflash.environments.remote import Tell
from dflash.errors import DataError, DFlashError, EnvironmentMismatch, UsageError, storage_error
from dflash.hosts.connection import Connection
from dflash.hosts.inventory import Host
from dflash.pipeline.answer import read_there
from dflash.pipeline.away import Order, Ready, prepare
from dflash.pipeline.belongings import belongings, belongings_of
from dflash.pipeline.comparing import Difference, compare, same, with_lines
from dflash.pipeline.events import read_jsonl
from dflash.pipeline.files import digest
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.policy import LEFT_OUT
from dflash.pipeline.provenance import machine
from dflash.pipeline.provenance.artifacts import METRICS
from dflash.pipeline.provenance.data import hashed
from dflash.pipeline.provenance.environment import environment
from dflash.pipeline.provenance.hashes import Hashes
from dflash.pipeline.provenance.lines import Lines, first_other, kept, lines
from dflash.pipeline.record import load_record, runs
from dflash.pipeline.restoring import Restored
from dflash.pipeline.schema import Pipeline, load_pipeline
from dflash.pipeline.verdict import Made, Verdict, judged
from dflash.provision.fact import read


@dataclass(frozen=True)
class Replay:
    """A run that is to be done again on a host: its record, its source, and its pipeline as it was typed. `environment`
    is the folder that declares the environment, in that source."""

    record: Mapping[str, Any]
    source: Restored
    lines: Lines
    host: Host
    pipeline: Pipeline
    environment: Path

    @property
    def provenance(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.record["provenance"]
        return found


@dataclass(frozen=True)
class Comparison:
    """What is the same, as a count, and what is not."""

    same: int
    differences: tuple[Difference, ...]

    @property
    def blocking(self) -> tuple[Difference, ...]:
        return tuple(each for each in self.differences if each.severity == "blocking")


def replay_of(record: Mapping[str, Any], run: Path, source: Restored, host: Host) -> Replay:
    """What doing the run in the folder `run` again takes.

    Raises:
        UsageError: the run is from before runs were recorded whole, or its pipeline can not be read any more.
        EnvironmentMismatch: its environment is not one that its source declares.
        StorageError: a file can not be read or written.
    """
    provenance = record.get("provenance")
    if not provenance:
        what = f"run {record['id']} is from before runs recorded what they were made from"
        raise UsageError(what, cure="use ./inv train with the same options; that run can be replayed")
    config, name = provenance["config"], provenance["environment"]["name"]
    folder = source.folder / "envs" / str(name)
    if not name or digest((folder / "requirements.lock").read_bytes()) != provenance["environment"]["lock"]:
        lock = str(provenance["environment"]["lock"])[:12]
        what = f"run {record['id']} ran in an environment (lock {lock}) that its source does not declare"
        raise EnvironmentMismatch(what, cure="nobody can make it again from here: use ./inv train")
    file = source.folder / ".replay" / Path(config["file"]).name
    try:
        file.parent.mkdir()
        file.write_text(config["text"], encoding="utf-8")
    except OSError as failure:
        raise storage_error(failure, file) from failure
    kinds = load_kinds(config["kinds"])
    pipeline = load_pipeline(file, kinds, config["overrides"])
    moved = {each.setting for each in belongings(pipeline) if re.search(r"/data/[0-9a-f]{16}/", each.name)}
    typed = [each for each in config["overrides"] if each.partition("=")[0] not in moved or "/data/" not in each]
    return Replay(record, source, kept(run), host, load_pipeline(file, kinds, typed) if moved else pipeline, folder)


def probe(connection: Connection, replay: Replay, root: Path) -> tuple[dict[str, Any], Lines]:
    """What is known of the machine before anything is done there, as a record has it: the machine itself, the
    environment that would be made or is there, and of the data what lies here. What was not looked at yet counts as
    unchanged. `root` is where hashes are remembered. Second, the lines of the texts that lie here.

    Raises:
        HostError: the host. StorageError: a file here can not be read.
    """
    is_here = replay.host.chain.is_local
    found = machine.described(machine.here() if is_here else read(connection, machine.FACTS))
    lock = read_lock(replay.environment / "requirements.lock").id
    around = {**environment(), **found["environment"]} if is_here else {"lock": lock, **found["environment"]}
    known: dict[str, dict[str, str]] = {name: dict(files) for name, files in replay.provenance["data"].items()}
    try:
        with Hashes(root) as hashes:
            for step in replay.pipeline.steps:
                for each in belongings_of(step):
                    if is_here or not each.is_there:
                        known.setdefault(step.name, {}).update(hashed(each, hashes))
        seen = lines(replay.pipeline)
    except OSError as failure:
        raise storage_error(failure) from failure
    return {"provenance": {**found, "environment": around, "data": known}}, seen


def compared(replay: Replay, new: Mapping[str, Any], accepted: Sequence[str], seen: Lines) -> Comparison:
    """The run's record against another, or a probe; `seen` are the lines of the texts that were read for that."""
    found = compare(replay.record, new, accepted)
    told = with_lines(found, lambda step, name: first_other(replay.lines, seen, step, name))
    return Comparison(same(replay.record, new), tuple(told))


def require(comparison: Comparison, run: str) -> None:
    """Raise EnvironmentMismatch, naming the first, when something keeps this from being a replay."""
    if blocking := comparison.blocking:
        first, others = blocking[0], len(blocking) - 1
        more = f"; and {others} more" if others else ""
        what = f"{first.field}: {first.cause}{more}"
        cure = f"undo that, or do it all the same with --accept {first.field}"
        raise EnvironmentMismatch(what, where=f"run {run} can not be replayed there", cure=cure)


def made_ready(
    connection: Connection, replay: Replay, tell: Tell, accepted: Sequence[str], wheels: Path | None
) -> Ready:
    """Have all that the replay takes at its host, and the data there compared by content.

    Raises:
        EnvironmentMismatch: the data is not what the run read. UsageError: that source can not do a run again.
        DFlashError: as away.prepare.
    """
    run = str(replay.record["id"])
    order = Order(
        replay.pipeline,
        replay.pipeline.overrides,
        replay.host,
        replay.environment,
        wheels,
        replay.provenance["config"]["kinds"],
        source=(replay.source.content, replay.source.origin),
        more={
            "apart": f"{run} {token_hex(8)}",
            "known": {"predecessor": {"run": run, "how": "replayed"}},
        },
    )
    ready = prepare(connection, order, tell)
    if any(each.status not in ("run", LEFT_OUT) for each in ready.plan.steps):
        what = f"the source of run {run} is from before a run could be done again: it would skip what is finished"
        raise UsageError(what, cure="use ./inv train with the same options; that run can be replayed")
    there = read_there(connection, ready.host, ready.python, ready.source, ready.request)
    require(compared(replay, {"provenance": {"data": there}}, accepted, {}), run)
    return ready


def made_by(root: Path, record: Mapping[str, Any]) -> Made:
    """What a run made, as far as it is here: the rows of each step that wrote some. Raises DataError, StorageError."""
    return Made({step["name"]: rows for step in record["steps"] if (rows := _rows(root, record, step))}, record)


def _rows(root: Path, record: Mapping[str, Any], step: Mapping[str, Any]) -> list[dict[str, Any]]:
    home = root / "runs" / str(record["id"])
    named = home / f"metrics-{step['name']}.jsonl"
    here = [named, home / METRICS] if step["kind"] == "train" else []
    for file in (*here, root / step["folder"] / METRICS):
        if file.is_file():
            return read_jsonl(file)
    return []


def others_like(root: Path, replay: Replay, new: Mapping[str, Any]) -> Iterator[Made]:
    """The other replays of the same run on the same host, from which `new` differs in nothing that is known: where data
    or a flag is another, numbers that differ are no noise."""
    for each in runs(root):
        try:
            record = load_record(root, each)
        except DFlashError:
            continue
        told = record.get("replay") or {}
        is_like = told.get("of") == replay.record["id"] and record["host"] == replay.host.name
        if each != new["id"] and is_like and record["status"] == "ok" and not compare(record, new):
            yield made_by(root, record)


def judge(root: Path, replay: Replay, run: str, accepted: Sequence[str]) -> tuple[Verdict, Comparison]:
    """Compare the finished replay `run` with the run, and keep the verdict in its record.

    Raises:
        DataError: a record or its rows are damaged. StorageError.
    """
    record = load_record(root, run)
    if "provenance" not in record:
        raise DataError("its record does not say what it was made from", where=f"run {run}")
    found = compared(replay, record, accepted, kept(root / "runs" / run))
    others = list(others_like(root, replay, record))
    verdict = judged(made_by(root, replay.record), made_by(root, record), found.differences, others)
    record["replay"] = {
        "of": replay.record["id"],
        "accepted": list(accepted),
        "same": found.same,
        "differences": [vars(each) for each in found.differences],
        "verdict": verdict.to_json(),
        "said": str(verdict),
    }
    try:
        write_json(root / "runs" / run / "record.json", record)
    except OSError as failure:
        raise storage_error(failure, root / "runs" / run / "record.json") from failure
    return verdict, found
