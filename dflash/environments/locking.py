"""Make `requirements.lock` again with uv, and say whether it is what its inputs ask for.

A lock begins with what it was made from, so that whoever reads it sees which input has changed since. No index address
is ever in it: it installs from any index, mirror or folder that has these very files.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from dflash.atomic import whole_file
from dflash.environments.bootstrap import pip_settings, uv_environment
from dflash.environments.lock import MADE_FROM, Lock, parse_lock, read_lock
from dflash.environments.spec import EnvironmentSpec, read_spec
from dflash.errors import ConfigError, EnvironmentMismatch, storage_error

HEADER = """\
# The environment {name}, file by file: made by `./inv env.lock {name}`, never by hand.
# No index address is in it: it installs from any index, mirror or folder of wheels that has these very files.
"""


@dataclass(frozen=True)
class Change:
    """A distribution whose version a new lock changes; None where one of the two has it not at all."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.name}: {self.before or 'not there'} -> {self.after or 'gone'}"


def inputs(spec: EnvironmentSpec, requirements: str) -> dict[str, str]:
    """What a lock is made from, by name."""
    asked = "\n".join(sorted(_lines(requirements)))
    return {
        "requirements.in": f"sha256 {hashlib.sha256(asked.encode()).hexdigest()[:16]}",
        "python": spec.python,
        "platform": spec.platform,
        "torch": spec.torch,
    }


def stale(folder: Path) -> list[str]:
    """Why the lock in `folder` is not what its inputs ask for: one line an input, none when it is fresh.

    Raises ConfigError or StorageError when one of the three files can not be read.
    """
    spec, requirements, lock = _read(folder)
    found = []
    for name, value in inputs(spec, requirements).items():
        before = lock.made_from.get(name)
        if before is None:
            found.append(f"{name}: the lock does not say what it was made from")
        elif before != value:
            source = "requirements.in" if name == "requirements.in" else "env.yaml"
            found.append(f"{source}: {name} has changed since: {before} -> {value}")
    return [*found, *_unmet(spec, requirements, lock)]


def relock(folder: Path, upgrade: Sequence[str] = ()) -> list[Change]:
    """Resolve `folder`'s requirements.in and write its lock; what changed. Pins stay where nothing asks for others;
    those in `upgrade` may move.

    Raises:
        ConfigError: an input is wrong, or no files can be found for it; the lock stays as it was.
        EnvironmentMismatch: the torch that was found is not the build that env.yaml declares.
    """
    spec = read_spec(folder / "env.yaml")
    requirements = _text(folder / "requirements.in")
    path = folder / "requirements.lock"
    before, former = _former(path)
    named = {canonicalize_name(each.name) for each in _asked(requirements, folder / "requirements.in")}
    known = named | {each.name for each in (former.entries if former else ())}
    for name in upgrade:
        if canonicalize_name(name) not in known:
            raise ConfigError(f"there is no {name} to upgrade", file=path, cure="name a package of the lock")
    resolved = _with_known_hashes(_resolve(folder, spec, before, upgrade), before)
    if "://" in resolved:
        where = resolved[: resolved.index("://")].count("\n") + 1
        raise ConfigError(f"line {where} of the new lock would hold an address", file=folder / "requirements.in")
    made_from = "".join(f"{MADE_FROM}{name}: {value}\n" for name, value in inputs(spec, requirements).items())
    text = HEADER.format(name=spec.name) + made_from + resolved
    lock = parse_lock(text.encode(), path)
    torch_as_declared(lock, spec, path)
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return _changes(former, lock)


def _former(path: Path) -> tuple[str, Lock | None]:
    """The lock so far; nothing when there is none, or none that can be read: it is about to be made again."""
    if not path.exists():
        return "", None
    try:
        text = _text(path)
        return text, parse_lock(text.encode(), path)
    except ConfigError:
        return "", None


def _asked(requirements: str, file: Path) -> list[Requirement]:
    """The requirements, parsed. Raises ConfigError with the line of one that is none."""
    found = []
    for number, line in enumerate(requirements.splitlines(), start=1):
        text = line.partition("#")[0].strip()
        try:
            found += [Requirement(text)] if text else []
        except InvalidRequirement:
            cure = "write NAME, NAME==VERSION or another requirement of PEP 508"
            raise ConfigError(f"{text!r} is not a requirement", file=file, line=number, column=1, cure=cure) from None
    return found


def torch_as_declared(lock: Lock, spec: EnvironmentSpec, file: Path) -> None:
    """Raises EnvironmentMismatch unless the lock pins the torch build of env.yaml, and nothing of another backend."""
    for each in lock.entries:
        if each.name == "torch" and each.version != spec.torch:
            what = f"torch is locked as {each.version}, env.yaml declares {spec.torch}"
            raise EnvironmentMismatch(what, where=f"{file}:{each.line}", cure="change one of the two, and lock again")
        major = re.fullmatch(r"nvidia-.*-cu(\d+)", each.name)
        if major and spec.cuda_major != int(major[1]) and each.name not in spec.allowed_conflicts:
            what = f"{each.name} is for CUDA {major[1]}, env.yaml declares {spec.cuda or 'no CUDA'}"
            raise EnvironmentMismatch(what, where=f"{file}:{each.line}", cure="change one of the two, and lock again")


def _read(folder: Path) -> tuple[EnvironmentSpec, str, Lock]:
    lock = read_lock(folder / "requirements.lock")
    return read_spec(folder / "env.yaml"), _text(folder / "requirements.in"), lock


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as failure:
        raise storage_error(failure, path) from failure
    except UnicodeDecodeError:
        raise ConfigError("not UTF-8", file=path, cure="save it as UTF-8") from None


def _lines(requirements: str) -> list[str]:
    """The requirements of a requirements.in, without comments."""
    return [line for each in requirements.splitlines() if (line := each.partition("#")[0].strip())]


def _unmet(spec: EnvironmentSpec, requirements: str, lock: Lock) -> Iterator[str]:
    pinned: dict[str, list[str]] = defaultdict(list)
    for each in lock.entries:
        pinned[each.name].append(each.version)
    for asked in _asked(requirements, Path("requirements.in")):
        versions = pinned[canonicalize_name(asked.name)]
        if asked.marker and not versions:
            continue  # for another platform than the lock's, or it would have been resolved
        if not versions:
            yield f"requirements.in: asks for {asked.name}, which the lock does not have"
        elif not any(asked.specifier.contains(version, prereleases=True) for version in versions):
            yield f"requirements.in: asks for {asked}; the lock has {' and '.join(versions)}"
    if pinned["torch"] and spec.torch not in pinned["torch"]:
        yield f"env.yaml: declares torch {spec.torch}; the lock has {' and '.join(pinned['torch'])}"


def _resolve(folder: Path, spec: EnvironmentSpec, before: str, upgrade: Sequence[str]) -> str:
    """uv's lines for `requirements.in`. First with all pins held, then with none but as a preference; each first from
    the indexes as they are set up here, then from where uv knows that builds of torch are."""
    platform = ["--universal"] if spec.platform == "universal" else ["--python-platform", spec.platform]
    said = ""
    with tempfile.TemporaryDirectory() as name:
        output, held = Path(name) / "requirements.lock", Path(name) / "held.txt"
        words = ["pip", "compile", "requirements.in", "--output-file", str(output), "--generate-hashes", "--quiet"]
        words += ["--python-version", spec.oldest_python, *platform]
        words += ["--no-emit-index-url", "--no-emit-find-links", "--no-header"]
        for package in upgrade:
            words += ["--upgrade-package", package]
        held.write_text("".join(_pins(before, upgrade)), encoding="utf-8")
        for constraints in (["--constraint", str(held)], []):
            for backend in ([], ["--torch-backend", spec.torch_backend]):
                # A lock there is a preference. Beside constraints it would only add its hashes, which then hide an
                # index that has other files of the same version.
                output.write_text("" if constraints else before, encoding="utf-8")
                done = uv(*words, *constraints, *backend, cwd=folder)
                if done.returncode == 0:
                    return _without_constraints(output.read_text(encoding="utf-8"))
                said = done.stderr if not constraints and not backend else said
    reason = " ".join(said.split()) or "uv ended without a word"
    cure = "check the requirements, and that an index can be reached"
    if spec.indexes:
        cure += f"; some files are on {', '.join(spec.indexes)}, which uv must know (UV_INDEX)"
    raise ConfigError(f"uv could not resolve it: {reason[:400]}", file=folder / "requirements.in", cure=cure)


def _without_constraints(resolved: str) -> str:
    """Without the lines that say a constraint asked for it."""
    kept = re.sub(r"^    #   -c .*\n", "", resolved, flags=re.MULTILINE)
    kept = re.sub(r"^    # via -c .*\n", "", kept, flags=re.MULTILINE)
    return re.sub(r"^    # via\n    #   (.*\n)(?!    #)", r"    # via \1", kept, flags=re.MULTILINE)


def _pins(lock: str, but: Sequence[str]) -> list[str]:
    """The pins of a lock as constraints, without the packages in `but`."""
    free = {canonicalize_name(name) for name in but}
    pins = re.findall(r"^(\S+==[^\\\n]*?)(?: \\)?$", lock, re.MULTILINE)
    return [f"{pin}\n" for pin in pins if canonicalize_name(pin.partition("==")[0]) not in free]


def index_variables(base: Mapping[str, str]) -> dict[str, str]:
    """`base` with the index, for uv, as pip is set up on this machine."""
    words = [sys.executable, "-Im", "pip", "--disable-pip-version-check", "config", "list"]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    return uv_environment(pip_settings(asked.stdout), dict(base))


def uv(*words: str, cwd: Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run this environment's uv as pip is set up on this machine; it never fetches an interpreter."""
    program = Path(sys.prefix) / "bin" / "uv"
    variables = index_variables({**os.environ, "UV_PYTHON_DOWNLOADS": "never", **(environment or {})})
    return subprocess.run([program, *words], cwd=cwd, env=variables, capture_output=True, text=True, check=False)


def _with_known_hashes(resolved: str, before: str) -> str:
    """An index can lack files that the former lock has (another interpreter's wheel): what was known of the same
    version stays."""
    known = _hashes(before)

    def block(match: re.Match[str]) -> str:
        hashes = sorted({*re.findall(r"sha256:([0-9a-f]{64})", match[2]), *known.get(match[1].split(" ")[0], ())})
        return f"{match[1]} \\\n" + " \\\n".join(f"    --hash=sha256:{each}" for each in hashes) + "\n"

    return _BLOCK.sub(block, resolved)


_BLOCK = re.compile(r"^(\S+==[^\\\n]*?) \\\n((?: +--hash=\S+(?: \\)?\n)+)", re.MULTILINE)


def _hashes(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pin, block in _BLOCK.findall(text):
        found.setdefault(pin.split(" ")[0], []).extend(re.findall(r"sha256:([0-9a-f]{64})", block))
    return found


def _changes(before: Lock | None, after: Lock) -> list[Change]:
    old, new = _versions(before), _versions(after)
    names = sorted(old.keys() | new.keys())
    return [Change(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _versions(lock: Lock | None) -> dict[str, str]:
    """Each name's version; of several for several platforms, all of them."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in lock.entries if lock else ():
        found[each.name].append(each.version)
    return {name: " and ".join(sorted(versions)) for name, versions in found.items()}
