"""Is an installed environment what its lock says? `judge` is pure; `verify` reads and judges."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from dflash.environments.installed import Claim, Distribution, Mode, OnDisk, Snapshot, read
from dflash.environments.lock import Lock, Locked, read_lock
from dflash.environments.spec import EnvironmentSpec, read_spec
from dflash.finding import Finding

REMAKE = "make it again: rm -r .venv && ./inv --list"

# A virtual environment brings these by itself; they count only when the lock names them.
BROUGHT_BY_VENV = frozenset({"pip", "setuptools"})


def verify(environment: Path, prefix: Path | None = None, *, mode: Mode = "cached") -> list[Finding]:
    """Compare the virtual environment at `prefix` (default: the running one) with an envs/<name> folder.

    Imports nothing that it checks. Raises ConfigError or StorageError when the declaration can not be read.
    """
    lock, spec = read_lock(environment / "requirements.lock"), read_spec(environment / "env.yaml")
    place = prefix or Path(sys.prefix)
    snapshot = read(place, mode)
    findings = judge(lock, spec, snapshot)
    if prefix is None:
        names = _top_levels(snapshot.distributions)
        findings += shadows(sys.path, place, names, _listing(sys.path))
    return findings


def judge(
    lock: Lock, spec: EnvironmentSpec, snapshot: Snapshot, variables: Mapping[str, str] | None = None
) -> list[Finding]:
    """Every difference between the lock and what is installed, one finding a distribution, worst first.

    `variables` are PEP 508 marker variables (default: this interpreter's).
    """
    wanted = lock.here(variables)
    by_name: dict[str, list[Distribution]] = defaultdict(list)
    for each in snapshot.distributions:
        if each.name in wanted or each.name not in BROUGHT_BY_VENV:
            by_name[each.name].append(each)
    problems = [
        *_names_and_versions(wanted, by_name),
        *_torch(spec, wanted, by_name),
        *_contents(snapshot, [each for group in by_name.values() for each in group]),
        *_two_owners(snapshot),
        *_unowned(snapshot),
        *_origin(lock, snapshot, wanted),
    ]
    if any(each.severity == "block" for each in problems):
        return problems
    looked = {
        "quick": "sizes compared",
        "full": f"{snapshot.hashed:,} hashed",
        "cached": f"{snapshot.hashed:,} hashed now, the others unchanged since they were",
    }[snapshot.mode]
    files = sum(len(each.claims) for each in snapshot.distributions)
    return [Finding("ok", "installed files", f"{len(wanted)} packages, {files:,} files: {looked}"), *problems]


def shadows(
    path: Sequence[str], prefix: Path, names: Iterable[str], listing: Mapping[str, Iterable[str]]
) -> list[Finding]:
    """Packages that an earlier entry of `path` hides (PYTHONPATH, a user site, a stray file).

    `names` are importable top-level names, `listing` the file names in each entry of `path`.
    """
    wanted = set(names)
    found = []
    for entry in path:
        if Path(entry or ".").resolve().is_relative_to(prefix.resolve()):
            break  # from here on it is the environment's own
        inside = {name.split(".", 1)[0]: name for name in listing.get(entry, ()) if _importable(name)}
        for name in sorted(wanted & inside.keys()):
            where = Path(entry or ".") / inside[name]
            cure = f"unset PYTHONPATH, or move {where} away"
            text = f"hidden by {where}, which is found first"
            found.append(Finding("block", f"package {name}", text, cure))
    return found


def _names_and_versions(wanted: Mapping[str, Locked], found: Mapping[str, list[Distribution]]) -> Iterator[Finding]:
    for name, locked in sorted(wanted.items()):
        installed = found.get(name, [])
        if not installed:
            yield Finding("block", f"package {name}", f"missing; the lock has {locked.version}", REMAKE)
        elif len(installed) > 1:
            versions = " and ".join(each.version for each in installed)
            yield Finding("block", f"package {name}", f"installed twice, as {versions}", REMAKE)
        elif not _same_version(installed[0].version, locked.version):
            text = f"{installed[0].version} is installed; the lock has {locked.version}"
            yield Finding("block", f"package {name}", text, REMAKE)
    for name in sorted(found.keys() - wanted.keys()):
        text = f"{found[name][0].version} is installed; the lock does not have it"
        yield Finding("block", f"package {name}", text, REMAKE)


def _torch(
    spec: EnvironmentSpec, wanted: Mapping[str, Locked], found: Mapping[str, list[Distribution]]
) -> Iterator[Finding]:
    if "torch" in wanted and not _same_version(wanted["torch"].version, spec.torch):
        text = f"the lock has {wanted['torch'].version}, env.yaml declares {spec.torch}"
        yield Finding("block", "torch build", text, "make the lock again from requirements.in")
    for each in found.get("torch", ()):
        if not _same_version(each.version, spec.torch):
            text = f"{each.version} is installed, env.yaml declares {spec.torch}"
            yield Finding("block", "torch build", text, REMAKE)


def _contents(snapshot: Snapshot, distributions: Iterable[Distribution]) -> Iterator[Finding]:
    for each in distributions:
        if not each.claims:
            yield Finding("block", f"package {each.name}", f"{each.folder} lists no files", REMAKE)
        gone, changed = [], []
        for path, claim in each.claims.items():
            file = snapshot.files.get(path)
            if file is None:
                gone.append(path)
            elif _differs(claim, file):
                changed.append(path)
        for paths, verb in ((gone, "removed"), (changed, "changed")):
            if paths:
                text = f"{verb} since it was installed: {_some(paths)}"
                yield Finding("block", f"package {each.name}", text, REMAKE)


def _differs(claim: Claim, file: OnDisk) -> bool:
    if claim.sha256 and file.sha256:
        return claim.sha256 != file.sha256
    return claim.size is not None and claim.size != file.size


def _two_owners(snapshot: Snapshot) -> Iterator[Finding]:
    owners: dict[str, list[str]] = defaultdict(list)
    for each in snapshot.distributions:
        for path in each.claims:
            owners[path].append(each.name)
    shared: dict[str, list[str]] = defaultdict(list)
    for path, names in owners.items():
        if len(names) > 1:
            shared[" and ".join(sorted(names))].append(path)
    for names_text, paths in sorted(shared.items()):
        yield Finding("block", names_text, f"both own {_some(paths)}; the last one installed won", REMAKE)


def _unowned(snapshot: Snapshot) -> Iterator[Finding]:
    owned = {path for each in snapshot.distributions for path in each.claims}
    # A distribution without a usable RECORD is reported for that, not for each of its files.
    strays = [path for path in snapshot.files if path not in owned and ".dist-info/" not in path]
    if strays:
        yield Finding("block", "site-packages", f"no package owns {_some(strays)}", REMAKE)


def _origin(lock: Lock, snapshot: Snapshot, wanted: Mapping[str, Locked]) -> Iterator[Finding]:
    if snapshot.stamp is None:
        cure = "run through ./inv, which makes and uses .venv"
        text = "not one that ./inv made, so only its present state is known"
        yield Finding("warn", "environment", text, cure)
        return
    if snapshot.stamp.get("lock") != lock.id:
        yield Finding("block", "environment", "made from another requirements.lock", REMAKE)
    for each in snapshot.distributions:
        made = (snapshot.made_with or {}).get(f"{each.folder}/RECORD")
        if each.name in wanted and made is not None and made != each.record_sha256:
            text = "installed again by something else since the environment was made"
            yield Finding("block", f"package {each.name}", text, REMAKE)


def _same_version(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _some(paths: Sequence[str]) -> str:
    rest = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{min(paths)}{rest}"


def _importable(name: str) -> bool:
    return name.endswith((".py", ".so")) or "." not in name


def _top_levels(distributions: Iterable[Distribution]) -> set[str]:
    tops = set()
    for each in distributions:
        site = each.folder.rsplit("/", 1)[0] + "/"
        for path in each.claims:
            if path.startswith(site) and path.endswith((".py", ".so")):
                tops.add(path[len(site) :].split("/", 1)[0].split(".", 1)[0])
    return tops


def _listing(path: Iterable[str]) -> dict[str, list[str]]:
    found = {}
    for entry in path:
        try:
            found[entry] = [
                each.name
                for each in os.scandir(entry or ".")
                # A folder without __init__.py hides nothing: `docker/` in the working tree, say.
                if each.is_file() or os.path.exists(os.path.join(each.path, "__init__.py"))
            ]
        except OSError:
            found[entry] = []
    return found
