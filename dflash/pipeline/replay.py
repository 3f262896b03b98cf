"""A run done once more, here or elsewhere: what would be different is known before it starts.

probe -> compare -> prepare -> launch -> judge: the steps of it that reach a host are here, what is decided is pure
(dflash/pipeline/comparing.py, dflash/pipeline/verdict.py). What came of it is in dflash/pipeline/judging.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from secrets import token_hex
from typing import Any

from dflash.compilation.remote import HostVault
from dflash.compilation.vault import Vault, VaultError, vault_folder
from dflash.environments.lock import read_lock
from dflash.environments.remote import Tell
from dflash.errors import DFlashError, EnvironmentMismatch, UsageError, storage_error
from dflash.hosts.connection import Connection
from dflash.hosts.inventory import Host
from dflash.pipeline.answer import read_there
from dflash.pipeline.away import Order, Ready, prepare
from dflash.pipeline.belongings import Belonging, belongings, belongings_of, files_named
from dflash.pipeline.comparing import fields
from dflash.pipeline.files import file_digest
from dflash.pipeline.judging import Comparison, compared
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.policy import LEFT_OUT
from dflash.pipeline.provenance import machine
from dflash.pipeline.provenance.data import hashed
from dflash.pipeline.provenance.environment import environment
from dflash.pipeline.provenance.hashes import Hashes
from dflash.pipeline.provenance.lines import Lines, kept, lines
from dflash.pipeline.record import AWAY
from dflash.pipeline.request import load_request
from dflash.pipeline.restoring import Restored
from dflash.pipeline.schema import Pipeline, load_pipeline
from dflash.provision.fact import read
from dflash.validation import suggestion


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


def replay_of(record: Mapping[str, Any], run: Path, source: Restored, host: Host) -> Replay:
    """What doing the run in the folder `run` again takes.

    Raises:
        UsageError: what the run was made from is not recorded here, or its pipeline can not be read any more.
        EnvironmentMismatch: its environment is not one that its source declares, and has to be made on the host.
        StorageError: a file can not be read or written.
    """
    if not record.get("provenance"):
        raise _unrecorded(str(record["id"]), run)
    config, known = record["provenance"]["config"], record["provenance"]["environment"]
    environment = _declared(source.folder, known)
    if environment is None and not host.chain.is_local:
        lock = f"an environment (lock {known['lock'][:12]})" if known["lock"] else "a Python"
        what = f"run {record['id']} ran in {lock} that its source does not declare"
        raise EnvironmentMismatch(what, cure="nobody can make it again from here: use ./inv train")
    file = source.folder / ".replay" / Path(config["file"]).name
    try:
        file.parent.mkdir()
        file.write_text(config["text"], encoding="utf-8")
    except OSError as failure:
        raise storage_error(failure, file) from failure
    kinds = load_kinds(config["kinds"])
    sent = {each.setting for each in belongings(load_pipeline(file, kinds, config["overrides"])) if _SENT(each.name)}
    typed = [each for each in config["overrides"] if each.partition("=")[0] not in sent or not _SENT(each)]
    pipeline = load_pipeline(file, kinds, typed)
    return Replay(record, source, kept(run), host, pipeline, environment or source.folder / "envs" / "local")


_SENT = re.compile(r"/data/[0-9a-f]{16}/").search
"""Finds where a path is that was sent along with a run (dflash/pipeline/belongings.py)."""


def _unrecorded(run: str, folder: Path) -> UsageError:
    try:
        if not json.loads((folder / AWAY).read_bytes()).get("ended"):
            return UsageError(f"run {run} has not come home yet", cure=f"./inv follow {run} brings it")
    except (OSError, ValueError, AttributeError):
        pass
    what = f"run {run} is from before runs recorded what they were made from, or ended before it had begun"
    return UsageError(what, cure="use ./inv train with the same options; that run can be replayed")


def _declared(source: Path, known: Mapping[str, Any]) -> Path | None:
    """The folder that declares an environment in a source: that with its lock, and with its name if several have it."""
    places = sorted((source / "envs").glob("*/requirements.lock"), key=lambda file: file.parent.name != known["name"])
    return next((file.parent for file in places if file_digest(file) == known["lock"]), None)


def begins_in(run: Path) -> Path:
    """Where the relative paths of the run in the folder `run` begin: where it was started, as far as that is known and
    there, else here."""
    try:
        place = load_request(run)["folder"]
    except DFlashError:
        place = None
    return Path(place) if place and Path(place).is_dir() else Path.cwd()


def probe(connection: Connection, replay: Replay, root: Path) -> tuple[dict[str, Any], Lines]:
    """What is known of the machine before anything is done there, as a record has it: the machine itself, the
    environment that would be made or is there, and of the data what lies here. What was not looked at yet counts as
    unchanged. `root` is where hashes are remembered. Second, the lines of the texts that lie here.

    Raises:
        HostError: the host. StorageError: a file here can not be read.
    """
    is_here = replay.host.chain.is_local
    secrets = {name for step in replay.pipeline.steps for name in step.secrets}
    found = machine.described(machine.here() if is_here else read(connection, machine.FACTS), secrets)
    around = environment() if is_here else {"lock": read_lock(replay.environment / "requirements.lock").id}
    known: dict[str, dict[str, str]] = {name: dict(files) for name, files in replay.provenance["data"].items()}
    try:
        with Hashes(root) as hashes:
            for step in replay.pipeline.steps:
                for each in belongings_of(step):
                    if is_here or not each.is_there:
                        known[step.name] = _looked_at(known.get(step.name, {}), each, hashes)
        seen = lines(replay.pipeline)
    except OSError as failure:
        raise storage_error(failure) from failure
    return {"provenance": {**found, "environment": {**around, **found["environment"]}, "data": known}}, seen


def _looked_at(known: Mapping[str, str], belonging: Belonging, hashes: Hashes) -> dict[str, str]:
    """What a step reads, where what one of its settings names is as it is now: what is gone is not among it."""
    _, named = files_named(belonging.name)
    others = {
        name: digest
        for name, digest in known.items()
        if name != named and not name.startswith(f"{named}/") and not fnmatchcase(name, named)
    }
    return others | dict(hashed(belonging, hashes))


def require_fields(accepted: Sequence[str], replay: Replay, seen: Mapping[str, Any]) -> None:
    """Raise UsageError for what is `accepted` and no field of the run, nor of what was `seen` of the machine. What else
    a step reads there is not known yet."""
    known = fields(replay.record) | fields(seen)
    read = tuple(f"data.{step.name}." for step in replay.pipeline.steps)
    for each in accepted:
        if each in known or (each.startswith(read) and not each.endswith(".")):
            continue
        near = get_close_matches(each, known) or [field for field in known if "." not in field]
        what = f"{each!r} is no field that is compared"
        raise UsageError(what, where="--accept", cure=suggestion(each, near, "ones, each with all below it"))


def require(comparison: Comparison, run: str) -> None:
    """Raise EnvironmentMismatch, naming the first, when something keeps this from being a replay."""
    if blocking := comparison.blocking:
        first, others = blocking[0], len(blocking) - 1
        more = f"; and {others} more" if others else ""
        what = f"{first.field}: {first.cause}{more}"
        cure = f"undo that, or do it all the same with --accept {first.field}"
        raise EnvironmentMismatch(what, where=f"run {run} can not be replayed there", cure=cure)


def made_ready(
    connection: Connection, replay: Replay, root: Path, tell: Tell, accepted: Sequence[str], wheels: Path | None
) -> Ready:
    """Have all that the replay takes at its host, the compile cache that the run used too where the vault of `root` has
    it, and the data there compared by content.

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
            "replays": run,
            "accepted": list(accepted),
            "known": {"predecessor": {"run": run, "how": "replayed"}},
        },
    )
    ready = prepare(connection, order, tell)
    if any(each.status not in ("run", LEFT_OUT) for each in ready.plan.steps):
        what = f"the source of run {run} is from before a run could be done again: it would skip what is finished"
        raise UsageError(what, cure="use ./inv train with the same options; that run can be replayed")
    there = read_there(connection, ready.host, ready.python, ready.source, ready.request)
    require(compared(replay.record, replay.lines, {"provenance": {"data": there}}, {}, accepted), run)
    used = {each["snapshot"] for each in replay.provenance["cache"].values() if each.get("snapshot")}
    send_caches(connection, ready, sorted(used), Vault(vault_folder(root)), tell)
    return ready


def send_caches(connection: Connection, ready: Ready, used: Sequence[str], vault: Vault, tell: Tell) -> None:
    """Have at the host the snapshots that a run `used`: a graph that is compiled anew computes the same, but not always
    the same bits. One that is in neither vault is no reason not to begin, but worth knowing.

    Raises HostError: the host.
    """
    if not used:
        return
    there = HostVault(connection, ready.host, python=ready.python)
    known = {each["id"] for each in there.ask("list")}
    for snapshot in used:
        if snapshot in known:
            continue
        try:
            there.put(vault, snapshot)
            tell(f"sent the compile cache {snapshot}, which the run used")
        except VaultError as failure:
            tell(f"what the run had compiled is compiled anew, and may give other bits: {failure}")
