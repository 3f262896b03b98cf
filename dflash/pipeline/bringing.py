"""What a step on another host takes is brought there, and its spec told in paths of that host."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from dflash.hosts import files
from dflash.hosts.connection import Connection
from dflash.pipeline.belongings import Belonging, Parcel, look, parcel, place_of, send
from dflash.pipeline.files import canonical, digest
from dflash.pipeline.kinds import StepKind, load_kinds
from dflash.pipeline.launchers.post import Post
from dflash.pipeline.launchers.supplies import linked
from dflash.pipeline.project import inputs_of
from dflash.pipeline.stream import Events


def bring(
    connection: Connection, post: Post, spec: Mapping[str, Any], kind: StepKind, stream: Events
) -> Iterator[tuple[str, str]]:
    """Have what the step takes there; the path here and there of each: outputs of steps before it, and files that its
    settings, or results that it is given, name."""
    for name, folder in spec["inputs"].items():
        done = json.loads((Path(folder) / "done.json").read_bytes())
        names = {each["path"]: each["sha256"] for each in done["outputs"]}
        place = f"{post.root}/data/{digest(canonical(sorted(names.items())))[:16]}"
        if not look(connection, [place])[1][place]:
            stream.note(f"sending what {name} made to {post.host.name}")
            with linked(Path(folder), names, Path(spec["out"]) / "scratch" / "sent") as files_of:
                files.put(connection, files_of, f"{place}.part")
            connection.run(["mv", "-T", f"{place}.part", place])
        yield folder, place
    settings = [(path, reduce(getitem, path.split("."), spec["config"])) for path in kind.paths]
    named = [*settings, *(("results", each) for each in _paths_in(spec["results"]))]
    for setting, path in named:
        if path and not any(path.startswith(f"{folder}/") for folder in spec["inputs"].values()):
            belonging = Belonging(setting, path)
            packed = parcel(belonging)
            _have(connection, post, belonging, packed, stream)
            yield path, f"{place_of(post.root, packed)}/{packed.named}"


def bring_inputs(connection: Connection, post: Post, spec: Mapping[str, Any], stream: Events) -> list[dict[str, Any]]:
    """Have the step's relative `inputs` there; where they are, as a request has it (dflash/pipeline/request.py)."""
    came = []
    for each in inputs_of(spec["patterns"], (), Path(spec["project"])):
        packed = parcel(each)
        _have(connection, post, each, packed, stream)
        came.append({"place": place_of(post.root, packed), "up": each.up})
    return came


def _have(connection: Connection, post: Post, belonging: Belonging, packed: Parcel, stream: Events) -> None:
    place = place_of(post.root, packed)
    if not look(connection, [place])[1][place]:
        stream.note(f"sending {belonging.name} to {post.host.name}")
        send(connection, post.root, belonging, packed)


def _paths_in(value: Any) -> Iterator[str]:
    """The text values that are paths of this machine."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _paths_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _paths_in(each)
    elif isinstance(value, str) and os.path.isabs(value) and os.path.exists(value):
        yield value


def spec_there(spec: Mapping[str, Any], kind: StepKind, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The spec as it must be there. Only what names a path is looked at: other words may be the same by chance."""
    lent = spec["borrowed"]
    if lent:
        paths = load_kinds(spec["kinds"])[lent["kind"]].paths
        lent = {**lent, "config": _moved(lent["config"], paths, pairs)}
    absolute = [(old, new) for old, new in pairs if os.path.isabs(old)]
    moved = {name: translated(spec[name], absolute) for name in ("inputs", "results", "out")}
    config = _moved(spec["config"], kind.paths, pairs)
    return {**spec, **moved, "config": config, "borrowed": lent, "host": None, "project": None}


def _moved(config: Mapping[str, Any], paths: Sequence[str], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """`config` with the settings at `paths` translated."""
    found = dict(config)
    for path in paths:
        name, _, rest = path.partition(".")
        found[name] = _moved(found[name], [rest], pairs) if rest else translated(found[name], pairs)
    return found


def translated(value: Any, pairs: Sequence[tuple[str, str]]) -> Any:
    """`value` with each path that is, or is below, the first of a pair as that of the second."""
    if isinstance(value, Mapping):
        return {name: translated(each, pairs) for name, each in value.items()}
    if isinstance(value, list):
        return [translated(each, pairs) for each in value]
    if isinstance(value, str):
        for old, new in pairs:
            if value == old or value.startswith(f"{old}/"):
                return new + value[len(old) :]
    return value
