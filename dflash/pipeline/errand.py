"""A run that another machine has: what `runs/ID/remote.json` here knows of it, from before it starts to its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash.atomic import write_json
from dflash.errors import ChainError, DataError, UsageError, storage_error
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline.record import AWAY

_SCHEMA = 1


@dataclass(frozen=True)
class Errand:
    """Where a run is: all that following, stopping or resuming it takes, on any machine that has its folder.

    `run` is its id, here and below `root` there; `job` the detached job that is its runner. It runs with `python`, of
    the generation `generation` of `environment`, from the source at `source`. `request` is what the runner was given
    (dflash/pipeline/far.py). `first` is the run that this one resumes, through others perhaps, or itself: generations
    are pinned under its name. `ended` is how the job ended, once that was seen. `lock` is, of an image's environment,
    the id of the lock that it was made from.
    """

    run: str
    host: str
    chain: str
    root: str
    job: str
    environment: str
    generation: str
    python: str
    source: str
    request: Mapping[str, Any]
    started: str
    first: str
    ended: Mapping[str, Any] | None = None
    lock: str = ""

    @property
    def where(self) -> Host:
        """The host, as it was when the run started, whatever hosts.yaml says now."""
        return Host(self.host, parse_chain(self.chain), self.root)

    @property
    def folder(self) -> str:
        """The run's folder there."""
        return f"{self.root}/runs/{self.run}"

    def is_in(self, folder: Path) -> bool:
        """Whether the run's folder there is this one here: it was sent to a root of this machine."""
        return self.where.chain.is_local and Path(self.folder).resolve() == folder.resolve()

    def write(self, folder: Path) -> None:
        """Keep it in the run's folder here, whole. Raises OSError."""
        write_json(folder / AWAY, {"schema": _SCHEMA, **asdict(self)})


def load_errand(root: Path, run: str) -> Errand:
    """What is known of the run `run` below `root`.

    Raises:
        UsageError: there is no such run, or it is one of this machine.
        DataError: remote.json is damaged. StorageError: it can not be read.
    """
    path = root / "runs" / run / AWAY
    try:
        found = json.loads(path.read_bytes())
        if found.pop("schema") != _SCHEMA:
            raise DataError("was written by another version of this project", where=str(path))
        errand = Errand(**found)
        if not _is_whole(errand):
            raise ValueError(run)
        return errand
    except (FileNotFoundError, NotADirectoryError):
        if (path.parent / "record.json").exists():
            what = f"run {run} is one of this machine, not of a host"
            raise UsageError(what, cure="./inv train with the same options goes on with it") from None
        cure = "./inv runs lists them; a job of a host needs --host H"
        raise UsageError(f"there is no run {run!r}", where=str(root / "runs"), cure=cure) from None
    except OSError as failure:
        raise storage_error(failure, path) from failure
    except (ValueError, KeyError, TypeError, AttributeError, ChainError):
        raise DataError("is damaged", where=str(path), cure="./inv jobs --host H lists what runs there") from None


def _is_whole(errand: Errand) -> bool:
    """Whether every field has what it should; a chain that is none raises ChainError."""
    maps = {"request": errand.request, "ended": errand.ended or {}}
    texts = [value for name, value in vars(errand).items() if name not in maps]
    whole = all(isinstance(text, str) for text in texts) and all(isinstance(each, dict) for each in maps.values())
    return whole and bool(errand.where)
