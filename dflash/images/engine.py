"""The seam to the `docker` program: BuildKit is only there (the docker SDK has none)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from dflash.errors import StorageError
from dflash.images.failures import (
    BaseMissing,
    BuildFailed,
    EngineMissing,
    ImageError,
    RegistryFailed,
    StoreBusy,
    WrongDigest,
)

OLDEST = Version("26.0")  # the first whose BuildKit (0.13) has rewrite-timestamp; a distribution's may not say its own
_STORE = "use Docker 26 or newer with the containerd image store: the feature containerd-snapshotter in daemon.json"


@dataclass(frozen=True)
class Engine:
    """A Docker engine that can build: versions, for the record, and the machine it is on."""

    version: str
    buildx: str
    buildkit: str
    architecture: str


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `docker` with these words. Raises EngineMissing where there is no such program."""
    program = shutil.which("docker")
    if program is None:
        cure = "install Docker 26 or newer (Debian: docker.io, docker-cli, docker-buildx)"
        raise EngineMissing("there is no program docker here", cure=cure)
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def find_engine() -> Engine:
    """The engine that `docker` reaches, when it can build the same bytes twice.

    Raises:
        EngineMissing: no docker, no engine, no buildx, an image store or a BuildKit that is too old.
    """
    asked = docker("info", "--format", "{{json .}}")
    info = _json(asked.stdout)
    if asked.returncode or info.get("ServerErrors"):
        said = _last(asked.stderr) or " ".join(info.get("ServerErrors") or ())
        raise EngineMissing(f"no Docker engine answers: {said}", cure="start it, or set DOCKER_HOST")
    buildx = docker("buildx", "version")
    if buildx.returncode:
        cure = "install it (Debian and Ubuntu: docker-buildx; else docker-buildx-plugin)"
        raise EngineMissing("docker has no buildx here", cure=cure)
    if ["driver-type", "io.containerd.snapshotter.v1"] not in (info.get("DriverStatus") or ()):
        what = f"the image store of this engine ({info.get('Driver')}) keeps no manifest digest and writes no OCI tar"
        raise EngineMissing(what, where=f"Docker {info.get('ServerVersion')}", cure=_STORE)
    inspected = docker("buildx", "inspect")
    if inspected.returncode:
        raise EngineMissing(f"buildx has no builder: {_last(inspected.stderr)}", cure="docker buildx use default")
    told = dict(re.findall(r"^\s*(Driver|BuildKit version):\s*(\S+)", inspected.stdout, re.MULTILINE))
    if told.get("Driver") != "docker":
        what = f"the builder in use is of the driver {told.get('Driver')}, which does not see the engine's images"
        raise EngineMissing(what, cure="docker buildx use default")
    if not _at_least(str(info.get("ServerVersion")), OLDEST):
        what = f"BuildKit of Docker {info.get('ServerVersion')} can not rewrite timestamps"
        raise EngineMissing(what, cure=f"use Docker {OLDEST} or newer")
    words = buildx.stdout.split()
    return Engine(str(info["ServerVersion"]), words[1], told["BuildKit version"], str(info["Architecture"]))


def image_digest(reference: str) -> str | None:
    """The manifest digest under which the engine has an image; None when it has none of that name."""
    found = docker("image", "inspect", "--format", "{{.Id}}", reference)
    return found.stdout.strip() if found.returncode == 0 else None


@retry(retry=retry_if_exception_type(StoreBusy), stop=stop_after_attempt(3), wait=wait_random(1, 4), reraise=True)
def build(words: Sequence[str], metadata: Path) -> str:
    """Run `docker buildx build` with its progress on standard error; the digest of the manifest it made.

    Raises:
        StorageError, BaseMissing, BuildFailed: see `failure_of`.
    """
    program = shutil.which("docker") or "docker"
    command = [program, "buildx", "build", "--progress=plain", "--metadata-file", str(metadata), *words]
    kept: deque[str] = deque(maxlen=400)
    variables = {**os.environ, "BUILDX_METADATA_PROVENANCE": "disabled", "NO_COLOR": "1"}
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stderr is not None
        for line in process.stderr:
            kept.append(line.rstrip("\n"))
            sys.stderr.write(line)
            sys.stderr.flush()
    if process.returncode:
        raise failure_of(list(kept))
    digest: str = json.loads(metadata.read_text())["containerimage.digest"]
    return digest


def load(tar: Path) -> None:
    """Put an OCI tar into the engine's store. Raises StorageError or ImageError."""
    done = docker("load", "--quiet", "--input", str(tar))
    if done.returncode:
        raise _full(done.stderr) or ImageError(f"the engine does not take the image: {_last(done.stderr)}")


def push(name: str, repository: str, tag: str) -> str:
    """Push the engine's image `name` as REPOSITORY:TAG; the digest that the registry took it under.

    Raises:
        RegistryFailed: it is down, or does not take it.
    """
    reference = f"{repository}:{tag}"
    docker("tag", name, reference)
    done = docker("push", reference)
    if done.returncode:
        raise registry_failure(done.stderr or done.stdout, reference)
    found = re.search(r"digest: (sha256:[0-9a-f]{64})", done.stdout)
    if found is None:
        raise RegistryFailed("it does not say under which digest it took the image", where=reference)
    return found[1]


def registry_failure(said: str, reference: str) -> ImageError:
    """Why a push to or a pull from a registry failed, from what the engine said."""
    last = _last(said).removeprefix("Error response from daemon: ")
    if re.search(r"unexpected commit digest|manifest verification failed|digest mismatch|failed size validation", last):
        cure = "do not use this registry until it is known why"
        return WrongDigest(f"the registry gave other bytes than the digest says: {last}", where=reference, cure=cure)
    if full := _full(last):
        return ImageError(full.what, where=reference, cure=full.cure)
    if re.search(r"unauthorized|authentication required|denied|no basic auth|insufficient_scope", last):
        return RegistryFailed(f"it does not let us in: {last}", where=reference, cure="docker login, then again")
    if re.search(r"not found|manifest unknown|name unknown", last):
        return RegistryFailed("the registry does not have it", where=reference, cure="check the name and the digest")
    return RegistryFailed(f"the registry can not be reached: {last}", where=reference, cure="check that it runs")


def failure_of(lines: Sequence[str]) -> BuildFailed | BaseMissing | StorageError:
    """Why a build failed, from the lines of its plain progress."""
    text = "\n".join(lines)
    last = re.sub(r"^ERROR: (failed to build: )?(failed to solve: )?", "", _last(text))
    if full := _full(text):
        return full
    if re.search(r"ref \S+ locked for \S+ .*: unavailable", last):
        return StoreBusy(f"the engine's store was locked: {last[-200:]}", cure="try again")
    missing = re.search(r"(\S+): failed to resolve source metadata for \S+?: (.*)|pull access denied.*", last)
    if missing:
        return BaseMissing(f"the base can not be pulled: {last}", cure="take an image that is here with --base")
    # What our scripts say, then what the failed step said last, then BuildKit's own word.
    failed = re.search(r"^#(\d+) ERROR: ", text, re.MULTILINE)
    number = failed[1] if failed else "none"
    said = [line.strip() for line in re.findall(rf"^#{number} [0-9.]+ (.*\S)", text, re.MULTILINE)]
    own = [line.removeprefix("dflash: ") for line in said if line.startswith("dflash: ")]
    before = [line for line in said if not line.startswith("dflash: ")]
    why = own[-1] if own else " ".join(before[-2:]) or last
    if own and before and "above" in why:
        why += f" ({' '.join(before[-4:])[-400:]})"
    step = re.search(rf"^#{number} \[(.*?)\] ", text, re.MULTILINE)
    return BuildFailed(why, where=f"step {step[1]}" if step else None)


def _full(text: str) -> StorageError | None:
    found = re.search(r"[^\n]*no space left on device", text, re.IGNORECASE)
    if not found:
        return None
    place = re.search(r"(/\S+?): no space left on device", found[0], re.IGNORECASE)
    cure = "free space there: `docker system df` says what the engine holds, --root puts the image's tar elsewhere"
    return StorageError("No space left on device", where=place[1] if place else "the engine's disk", cure=cure)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _at_least(version: str, oldest: Version) -> bool:
    try:
        return Version(version.partition("+")[0].partition("-")[0]) >= oldest
    except InvalidVersion:
        return False
