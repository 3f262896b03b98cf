"""A wheelhouse: a folder with every file of a lock, from which the environment can be made with no network at all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dflash.atomic import sha256
from dflash.environments.lock import Lock, read_lock
from dflash.environments.locking import torch_as_declared, uv
from dflash.environments.remote import marker_variables
from dflash.environments.spec import EnvironmentSpec, read_spec
from dflash.errors import EnvironmentMismatch, StorageError


@dataclass(frozen=True)
class Wheelhouse:
    """A filled folder: how many files, their bytes, and whether an environment was made from it without a network
    (None when this machine has no namespace to try it in)."""

    folder: Path
    files: int
    bytes: int
    proved: bool | None


def fill(folder: Path, wheels: Path, tell: Callable[[str], object] = lambda line: None) -> Wheelhouse:
    """Fetch every file that the lock in `folder` needs into `wheels`, and prove that they suffice.

    What is there with a right hash stays; what has no hash of the lock is refused, not deleted.

    Raises:
        ConfigError, EnvironmentMismatch: the declaration; a file that no index has, or that the lock does not know.
    """
    spec, lock = read_spec(folder / "env.yaml"), read_lock(folder / "requirements.lock")
    torch_as_declared(lock, spec, folder / "requirements.lock")
    wheels.mkdir(parents=True, exist_ok=True)
    version = python_for(spec)
    _refuse_others(lock, wheels)  # before anything is fetched beside them
    _fetch(spec, lock, folder / "requirements.lock", wheels, version, tell)
    found = _refuse_others(lock, wheels)
    tell("making the environment from it, with no network")
    proved = prove(folder, wheels, version)
    return Wheelhouse(wheels, len(found), sum(path.stat().st_size for path in found), proved)


def _refuse_others(lock: Lock, wheels: Path) -> list[Path]:
    """The files of a wheelhouse. Raises EnvironmentMismatch naming all that are none of the lock's."""
    known = {digest for each in lock.entries for digest in each.hashes}
    found = sorted(path for path in wheels.iterdir() if path.suffix == ".whl" or path.name.endswith(".tar.gz"))
    others = [path.name for path in found if sha256(path) not in known]
    if others:
        what = f"the lock has no file with the hash of {', '.join(others)}"
        cure = "move them away: a wheelhouse holds the lock's files only"
        raise EnvironmentMismatch(what, where=str(wheels), cure=cure)
    return found


def python_for(spec: EnvironmentSpec) -> str:
    """The interpreter here that is in the environment's range; its version.

    Raises EnvironmentMismatch when there is none.
    """
    found = uv("python", "find", "--no-python-downloads", "--system", spec.python, cwd=Path.cwd())
    if found.returncode:
        what = f"there is no Python {spec.python} on this machine to fetch wheels for"
        raise EnvironmentMismatch(what, where=f"envs/{spec.name}", cure="install one; its headers are not needed")
    asked = [found.stdout.strip(), "-ISc", "import platform; print(platform.python_version())"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _fetch(
    spec: EnvironmentSpec, lock: Lock, path: Path, wheels: Path, version: str, tell: Callable[[str], object]
) -> None:
    """By pip, which alone has a download command; for the environment's Python and platform, not for this process's."""
    wanted = lock.here(marker_variables(version, os.uname().machine))
    tell(f"fetching {len(wanted)} packages into {wheels}")
    short = ".".join(version.split(".")[:2])
    words = [sys.executable, "-Im", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    words += ["--require-hashes", "--dest", str(wheels), "--find-links", str(wheels), "--only-binary", ":all:"]
    words += ["--python-version", short, "--implementation", "cp"]
    for platform in platforms(spec.platform):
        words += ["--platform", platform]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        for each in wanted.values():
            hashes = " ".join(f"--hash=sha256:{digest}" for digest in sorted(each.hashes))
            requirements.write(f"{each.name}=={each.version} {hashes}\n")
        requirements.flush()
        done = subprocess.run([*words, "-r", requirements.name], capture_output=True, text=True, check=False)
    if done.returncode:
        if "No space left" in done.stderr:
            raise StorageError("No space left on device", where=str(wheels), cure="free space, or name another folder")
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        reason = re.sub(r"^ERROR: ", "", errors[0])[:300] if errors else f"pip ended with {done.returncode}"
        cure = "check that pip reaches an index that has it"
        if spec.indexes:
            cure += f"; some files are on {', '.join(spec.indexes)}"
        raise EnvironmentMismatch(f"pip could not fetch it: {reason}", where=str(path), cure=cure)


def platforms(platform: str) -> list[str]:
    """The wheel tags that fit a lock's platform, newest first: an older glibc's wheels run on a newer one."""
    machine = os.uname().machine
    newest = int(platform.rpartition("_")[2]) if platform.startswith("x86_64-manylinux") else 28
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
    return [*tags, f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]


def prove(folder: Path, wheels: Path, version: str) -> bool | None:
    """Make the environment from the wheelhouse, with an empty cache, in a network namespace that has no interface.

    Raises EnvironmentMismatch when it can not be made from these files alone.
    """
    alone = [shutil.which("unshare") or "", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if not alone[0] or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        return None
    tool = str(Path(sys.prefix) / "bin" / "uv")
    # Beside the wheels, where there is room for such files.
    with tempfile.TemporaryDirectory(prefix=".proof-", dir=wheels.resolve().parent) as name:
        environment = {**os.environ, "UV_CACHE_DIR": f"{name}/cache", "UV_PYTHON_DOWNLOADS": "never"}
        # Links to the temporary cache, which is on the same disk: nothing here outlives the proof.
        environment |= {"UV_LINK_MODE": "hardlink", "UV_NO_CONFIG": "1"}
        lock = str((folder / "requirements.lock").resolve())
        sync = [tool, "pip", "sync", "--quiet", "--require-hashes", "--no-index", "--find-links", str(wheels.resolve())]
        for words in (
            [tool, "venv", "--quiet", "--no-project", "--python", version, f"{name}/env"],
            [*sync, "--python", f"{name}/env/bin/python", lock],
        ):
            done = subprocess.run([*alone, *words], env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = " ".join(done.stderr.split())[:400]
                if "No space left" in reason:
                    raise StorageError("No space left on device", where=str(wheels.parent), cure="free space there")
                raise EnvironmentMismatch(f"it does not suffice: {reason}", where=str(wheels), cure="fill it again")
    return True
