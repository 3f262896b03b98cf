"""Build an image as planned, prove it, and keep what was learnt beside it.

    ROOT/build/ENVIRONMENT/DIGEST/record.json   what it was made from and by what, and where it was pushed
                                  files.json    every file of its environment and code: bytes and SHA-256
                                  sbom.json     CycloneDX 1.6

An OCI tar is written once; that very tar is loaded and pushed, so the manifest digest is one everywhere.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash.atomic import whole_file, whole_folder, write_json
from dflash.environments.lock import Lock, read_lock
from dflash.environments.locking import index_variables
from dflash.environments.spec import read_spec
from dflash.errors import UsageError, storage_error
from dflash.images import engine
from dflash.images.bases import Base, chosen, parse_pinned, parse_tagged, read_bases, read_images
from dflash.images.compare import Difference, first_difference
from dflash.images.context import make_context, read_revision
from dflash.images.failures import BaseMissing, WrongDigest
from dflash.images.oci import files_of, open_oci, plain
from dflash.images.plan import Ground, Network, Plan, ground_of, make_plan, words_for
from dflash.images.sbom import sbom, wanted

ENVIRONMENT = "/opt/env"
PROJECT = "/opt/dflash"
_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX_STRATEGY", "UV_INSECURE_HOST")


@dataclass(frozen=True)
class Wish:
    """What a person asked for: an image by name; a base in place of the declared one; a folder of wheels in place of
    an index; where to push, and where to put the tar; whether to build it twice and compare."""

    name: str
    base: str = ""
    wheels: Path | None = None
    push: str = ""
    out: Path | None = None
    check: bool = False
    network: Network | None = None


@dataclass(frozen=True)
class Built:
    """A finished build. `difference` is None unless a second build gave other bytes; `record` has the rest."""

    digest: str
    record: Mapping[str, Any]
    folder: Path
    difference: Difference | None = None


def build(wish: Wish, project: Path, root: Path) -> Built:
    """Build an image of the project at `project`, with what is kept of it below `root`.

    An image of which a second build differs is not loaded, not pushed and not kept.

    Raises:
        UsageError, ConfigError: something asked for or declared is wrong.
        StorageError: a disk is full, or can not be written.
        ImageError: no engine, no base, a step that failed, a registry; each by its class.
    """
    revision = read_revision(project)
    pushed_to = parse_tagged(wish.push, revision.commit[:12]) if wish.push else None
    if wish.wheels and not wish.wheels.is_dir():
        raise UsageError("there is no such folder", where=f"--wheels {wish.wheels}", cure="name a folder of wheels")
    bases = read_bases(project / "docker" / "bases.yaml")
    image = chosen(read_images(project / "docker" / "images.yaml", bases), wish.name)
    found = engine.find_engine()
    if found.architecture != os.uname().machine:
        what = f"the engine is on {found.architecture}, this machine is {os.uname().machine}"
        raise UsageError(what, cure="build on a machine of the engine's kind")
    declared = project / "envs" / image.environment
    lock = read_lock(declared / "requirements.lock")
    with _draft(root / "build" / image.environment) as draft:
        plan = make_plan(
            dockerfile=project / "docker" / image.dockerfile,
            image=image,
            ground=_ground(wish.base or image.base or "", bases),
            spec=read_spec(declared / "env.yaml"),
            lock=lock,
            revision=revision,
            wheels=wish.wheels,
            secret=None if wish.wheels else _index_settings(draft / "index"),
            network=wish.network,
        )
        context = make_context(project, image.environment, plan.epoch, draft / "context")
        plan, digest, identical, difference = _twice(plan, context, draft, check=wish.check)
        record = {
            "image": wish.name,
            "environment": image.environment,
            "digest": digest,
            "identical": identical,
            "commit": revision.commit,
            "changed": list(revision.changed),
            "lock": lock.id,
            "base": {"name": plan.ground.name, "digest": plan.ground.digest, "reference": plan.ground.references[0]},
            "epoch": plan.epoch,
            "files_from": plan.arguments["FILES"],
            "tools": {"docker": found.version, "buildx": found.buildx, "buildkit": found.buildkit, "uv": _uv_version()},
        }
        folder = root / "build" / image.environment / digest.removeprefix("sha256:")
        if difference:
            return Built(digest, record, folder, difference)
        told = _look_inside(draft / "image.tar", plan, digest, lock)
        engine.load(draft / "image.tar")
        if pushed_to:
            record["pushed"] = [_push(plan.name, pushed_to, digest)]
        if wish.out:
            _put(draft / "image.tar", wish.out)
    with whole_folder(folder) as fresh:
        write_json(fresh / "record.json", {**record, "layers": told["layers"]})
        write_json(fresh / "files.json", told["files"])
        write_json(fresh / "sbom.json", told["sbom"])
    return Built(digest, {**record, "layers": told["layers"]}, folder)


def _twice(plan: Plan, context: Path, draft: Path, *, check: bool) -> tuple[Plan, str, bool | None, Difference | None]:
    """Build, and build again if it is to be checked; the plan with the place where the base was found, the digest,
    whether both builds have it, and how they differ. Of two tars only the first is left."""
    plan, digest = _from_first_base(plan, context, draft, cached=not check)
    if not check:
        return plan, digest, None, None
    second = draft / "second.tar"
    again = engine.build(
        words_for(plan, plan.ground.references[0], context, second, cached=False), draft / "second.json"
    )
    if again == digest:
        second.unlink()
        return plan, digest, True, None
    with open_oci(draft / "image.tar") as one, open_oci(second) as two:
        return plan, digest, False, first_difference(one, two)


def _from_first_base(plan: Plan, context: Path, draft: Path, *, cached: bool) -> tuple[Plan, str]:
    """Build from the first place that has the base."""
    failures: list[BaseMissing] = []
    for reference in plan.ground.references:
        try:
            words = words_for(plan, reference, context, draft / "image.tar", cached=cached)
            digest = engine.build(words, draft / "image.json")
        except BaseMissing as failure:
            failures.append(failure)
            continue
        return replace(plan, ground=replace(plan.ground, references=(reference,))), digest
    tried = " and ".join(each.partition("@")[0] for each in plan.ground.references)
    raise BaseMissing(failures[0].what, where=f"{plan.ground.name} (tried {tried})", cure=failures[0].cure)


def _ground(base: str, bases: Mapping[str, Base]) -> Ground:
    """What `--base` means: a name of bases.yaml, an image by its digest, or one that the engine has."""
    if base in bases:
        return ground_of(bases[base])
    if not base:
        raise UsageError("this image has no base of its own", cure=f"give one with --base, such as {min(bases)}")
    if "@" in base:
        _, digest = parse_pinned(base)
        return Ground((base,), base, digest)
    here = engine.image_digest(base)
    if here is None:
        what = f"the engine has no image {base!r}, and a tag is not pulled, as it can be moved"
        raise UsageError(what, where="--base", cure=f"pull it, give REPOSITORY@sha256:…, or one of {', '.join(bases)}")
    return Ground((base,), base, here)


def _look_inside(tar: Path, plan: Plan, digest: str, lock: Lock) -> dict[str, Any]:
    with open_oci(tar) as image:
        if image.digest != digest:
            raise WrongDigest(f"the tar has {image.digest}, BuildKit said {digest}", where=str(tar))
        files, contents = files_of(image, wanted)
        below = (f"{ENVIRONMENT}/", f"{PROJECT}/")
        kept = {path: plain(files, each) for path, each in sorted(files.items()) if path.startswith(below)}
        layers = [{"digest": each.digest, "bytes": each.size, "made_by": each.made_by} for each in image.layers]
        bill = sbom(plan.name.partition(":")[0], digest, image.labels, contents, lock)
    return {"layers": layers, "files": {path: each for path, each in kept.items() if each}, "sbom": bill}


def _push(name: str, place: tuple[str, str], digest: str) -> str:
    taken = engine.push(name, *place)
    if taken != digest:
        what = f"it took the image as {taken}, which is {digest}"
        raise WrongDigest(what, where=":".join(place), cure="do not use this registry until it is known why")
    return f"{place[0]}@{digest}"


def _put(tar: Path, target: Path) -> None:
    try:
        with whole_file(target.absolute()) as fresh:
            shutil.move(tar, fresh)
    except OSError as failure:
        raise storage_error(failure, target) from failure


@contextmanager
def _draft(folder: Path) -> Iterator[Path]:
    """A folder for what a build needs, gone afterwards: beside the result, so that --root says which disk it takes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder))
    except OSError as failure:
        raise storage_error(failure, folder) from failure
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _index_settings(file: Path) -> Path:
    """Write this machine's settings for the index, pip's own included, as lines for a shell; readable by us alone."""
    variables = index_variables(os.environ)
    lines = [f"export {name}={shlex.quote(variables[name])}\n" for name in _INDEX if name in variables]
    try:
        file.touch(0o600)
        file.write_text("".join(lines), encoding="utf-8")
    except OSError as failure:
        raise storage_error(failure, file) from failure
    return file


def _uv_version() -> str:
    words: Sequence[str] = (str(Path(sys.prefix) / "bin" / "uv"), "--version")
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()[1]
