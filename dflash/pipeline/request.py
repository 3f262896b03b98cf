"""What a run is asked to do, whole: sent along to another machine, and kept in the run's folder, so that it can be gone
on with whatever has become of the pipeline's file.

    {"pipeline": {"name", "file", "text"}, "overrides": [...], "host": {"name", "gpus"}, "kinds": import path,
     "hosts": as machines.to_json has those that the pipeline names, "secrets": their names,
     "folder": where relative paths begin (null for a run elsewhere), "resumes": a run or null}

It may have "known", parts of the run's provenance, and "apart", a name under which everything is done anew, as
keys.Surroundings has it; and if it "replays" a run, which one, and the differences that were "accepted" for that. Files
of relative `inputs` that came along are "inputs": [{"place": their folder, "up": how many folders above the project},
...] (dflash/pipeline/project.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash.errors import DataError, UsageError, storage_error
from dflash.hosts.chain import Chain, Local
from dflash.hosts.inventory import Host
from dflash.pipeline.keys import observe
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.machines import from_json, to_json
from dflash.pipeline.plan import Plan, make_plan
from dflash.pipeline.project import project_of
from dflash.pipeline.schema import Pipeline, load_pipeline
from dflash.pipeline.store import Store

FILE = "request.json"


def request_of(
    pipeline: Pipeline,
    overrides: Sequence[str],
    host: Host,
    kinds: str,
    folder: Path | None = None,
    hosts: Mapping[str, Host] | None = None,
) -> dict[str, Any]:
    """The request for a pipeline, checked with these `overrides`; `hosts` are as in a Plan. Raises StorageError."""
    try:
        text = Path(pipeline.file).read_text(encoding="utf-8")
    except OSError as failure:
        raise storage_error(failure, pipeline.file) from failure
    return {
        "pipeline": {"name": Path(pipeline.file).name, "file": os.path.abspath(pipeline.file), "text": text},
        "overrides": list(overrides),
        "host": {"name": host.name, "gpus": host.gpus},
        "kinds": kinds,
        "hosts": to_json(hosts or {}),
        "folder": str(folder) if folder else None,
        "secrets": sorted({name for step in pipeline.steps for name in step.secrets}),
        "resumes": None,
    }


def pipeline_of(request: Mapping[str, Any], folder: Path) -> Pipeline:
    """The pipeline that a request holds, whose text is put into `folder`. It is named by where it came from: there a
    person changes it."""
    given = request["pipeline"]
    file = folder / Path(given["name"]).name
    file.write_text(given["text"], encoding="utf-8")
    loaded = load_pipeline(file, load_kinds(request["kinds"]), request["overrides"])
    return replace(loaded, file=given.get("file", loaded.file))


def planned(request: Mapping[str, Any], root: Path, folder: Path) -> Plan:
    """The plan on this machine of what is asked."""
    pipeline = pipeline_of(request, folder)
    here = Host(request["host"]["name"], Chain((Local(),)), str(root), request["host"]["gpus"])
    project = project_of(request, root)
    around = replace(observe(pipeline, project), apart=request.get("apart", ""))
    made = make_plan(pipeline, here, around, Store(root), from_json(request.get("hosts", {})))
    return replace(made, project=project)


def load_request(folder: Path) -> dict[str, Any]:
    """What the run with this folder was asked to do. Raises UsageError where an older version kept none, DataError, or
    StorageError."""
    path, cure = folder / FILE, "./inv train with the same options goes on with it"
    try:
        found = json.loads(path.read_bytes())
        if not found.keys() >= {"pipeline", "overrides", "host", "kinds", "folder"}:
            raise ValueError(found)
    except FileNotFoundError:
        raise UsageError(f"run {folder.name} has not kept what it was asked to do", cure=cure) from None
    except OSError as failure:
        raise storage_error(failure, path) from failure
    except (ValueError, AttributeError):
        raise DataError("is damaged", where=str(path), cure=cure) from None
    return dict(found)
