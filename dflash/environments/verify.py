"""Is an installed environment what its lock says? `judge` is pure; `verify` reads and judges."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from dflash.environments.cuda import in_namespace, judge_cuda
from dflash.environments.installed import read
from dflash.environments.lock import Lock, Locked, read_lock
from dflash.environments.problems import problem
from dflash.environments.shadows import listing, shadows, top_levels
from dflash.environments.snapshot import Claim, Distribution, Mode, OnDisk, Snapshot
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
        findings += shadows(sys.path, place, top_levels(snapshot.distributions), listing(sys.path))
    return findings


def judge(
    lock: Lock,
    spec: EnvironmentSpec,
    snapshot: Snapshot,
    variables: Mapping[str, str] | None = None,
    remake: str = REMAKE,
) -> list[Finding]:
    """Every difference between the lock and what is installed, one finding a distribution, worst first.

    `variables` are PEP 508 marker variables (default: this interpreter's); `remake` is what to do about a difference.
    """
    wanted = lock.here(variables)
    by_name: dict[str, list[Distribution]] = defaultdict(list)
    for each in snapshot.distributions:
        # uv brings none of them into a generation.
        if each.name in wanted or snapshot.record is not None or each.name not in BROUGHT_BY_VENV:
            by_name[each.name].append(each)
    here = [each for group in by_name.values() for each in group]
    problems = [
        *judge_cuda(spec, snapshot, remake),
        *_names_and_versions(wanted, by_name, remake),
        *_torch(spec, wanted, by_name, remake),
        *_contents(snapshot, here, spec.allowed_conflicts, remake),
        *_two_owners(snapshot, spec.allowed_conflicts, remake),
        *_unowned(snapshot, remake),
        *_against_record(snapshot, spec.allowed_conflicts, remake),
        *_origin(lock, snapshot, wanted, remake),
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


def _names_and_versions(
    wanted: Mapping[str, Locked], found: Mapping[str, list[Distribution]], remake: str
) -> Iterator[Finding]:
    for name, locked in sorted(wanted.items()):
        installed = found.get(name, [])
        if not installed:
            yield problem("missing", f"package {name}", f"missing; the lock has {locked.version}", remake)
        elif len(installed) > 1:
            versions = " and ".join(each.version for each in installed)
            yield problem("twice", f"package {name}", f"installed twice, as {versions}", remake)
        elif not _same_version(installed[0].version, locked.version):
            text = f"{installed[0].version} is installed; the lock has {locked.version}"
            yield problem("version", f"package {name}", text, remake)
    for name in sorted(found.keys() - wanted.keys()):
        text = f"{found[name][0].version} is installed; the lock does not have it"
        yield problem("extra", f"package {name}", text, remake)


def _torch(
    spec: EnvironmentSpec, wanted: Mapping[str, Locked], found: Mapping[str, list[Distribution]], remake: str
) -> Iterator[Finding]:
    if "torch" in wanted and not _same_version(wanted["torch"].version, spec.torch):
        text = f"the lock has {wanted['torch'].version}, env.yaml declares {spec.torch}"
        yield problem("torch-build", "torch build", text, f"make the lock again: ./inv env.lock {spec.name}")
    for each in found.get("torch", ()):
        if not _same_version(each.version, spec.torch):
            text = f"{each.version} is installed, env.yaml declares {spec.torch}"
            yield problem("torch-build", "torch build", text, remake)


def _contents(
    snapshot: Snapshot, distributions: Iterable[Distribution], shared: Sequence[str], remake: str
) -> Iterator[Finding]:
    for each in distributions:
        if not each.claims:
            yield problem("changed", f"package {each.name}", f"{each.folder} lists no files", remake)
        gone, changed = [], []
        for path, claim in each.claims.items():
            file = snapshot.files.get(path)
            if file is None and not in_namespace(path):  # cuda.py has a name of its own for those
                gone.append(path)
            elif file is not None and _differs(claim, file, snapshot.mode) and not _is_shared(path, shared):
                changed.append(path)
        for paths, verb in ((gone, "removed"), (changed, "changed")):
            if paths:
                text = f"{verb} since it was installed: {_some(paths)}"
                yield problem(verb, f"package {each.name}", text, remake)


def _is_shared(path: str, shared: Sequence[str]) -> bool:
    return path.partition("/site-packages/")[2] in shared


def _differs(claim: Claim, file: OnDisk, mode: Mode) -> bool:
    if claim.sha256 and file.sha256:
        return claim.sha256 != file.sha256
    unread = mode != "quick" and claim.sha256 is not None and file.sha256 is None
    return unread or (claim.size is not None and claim.size != file.size)


def _two_owners(snapshot: Snapshot, shared: Sequence[str], remake: str) -> Iterator[Finding]:
    owners: dict[str, list[str]] = defaultdict(list)
    for each in snapshot.distributions:
        for path in each.claims:
            owners[path].append(each.name)
    groups: dict[str, list[str]] = defaultdict(list)
    for path, names in owners.items():
        if len(names) > 1 and not _is_shared(path, shared):
            groups[" and ".join(sorted(names))].append(path)
    for names_text, paths in sorted(groups.items()):
        yield problem("two-owners", names_text, f"both own {_some(paths)}; the last one installed won", remake)


def _unowned(snapshot: Snapshot, remake: str) -> Iterator[Finding]:
    if snapshot.record is not None:
        known = set(snapshot.record.files)  # what was there when it was made, whoever claims what is there now
        strays = [path for path in snapshot.files if path not in known]
    else:
        owned = {path for each in snapshot.distributions for path in each.claims}
        # A distribution without a usable RECORD is reported for that, not for each of its files.
        strays = [path for path in snapshot.files if path not in owned and ".dist-info/" not in path]
    if strays:
        where = "environment" if snapshot.record else "site-packages"
        yield problem("added", where, f"no package owns {_some(strays)}", remake)


def _against_record(snapshot: Snapshot, shared: Sequence[str], remake: str) -> Iterator[Finding]:
    """What no package claims, such as scripts, pyvenv.cfg and RECORDs, against what was written down. In quick mode
    times tell, too: nothing changes a file of an environment."""
    if snapshot.record is None:
        return
    claims = {path for each in snapshot.distributions for path, claim in each.claims.items() if claim.sha256}
    claimed = {path for path in claims if not _is_shared(path, shared)}
    gone, changed = [], []
    for path, before in snapshot.record.files.items():
        now = snapshot.files.get(path)
        if now is None:
            if path not in claimed:
                gone.append(path)
            continue
        touched = snapshot.mode == "quick" and (now.size, now.mtime) != (before.size, before.mtime)
        if touched or (path not in claimed and _differs(Claim(before.sha256, before.size), now, snapshot.mode)):
            changed.append(path)
    for paths, verb in ((gone, "removed"), (changed, "changed")):
        if paths:
            yield problem(verb, "environment", f"{verb} since it was made: {_some(paths)}", remake)


def _origin(lock: Lock, snapshot: Snapshot, wanted: Mapping[str, Locked], remake: str) -> Iterator[Finding]:
    if snapshot.stamp is None and snapshot.record is None:
        cure = "run through ./inv, which makes and uses .venv"
        text = "not one that ./inv made, so only its present state is known"
        yield problem("unknown-origin", "environment", text, cure, "warn")
        return
    made_from = snapshot.record.lock if snapshot.record else (snapshot.stamp or {}).get("lock")
    if made_from != lock.id:
        yield problem("other-lock", "environment", "made from another requirements.lock", remake)
    for each in snapshot.distributions:
        made = (snapshot.made_with or {}).get(f"{each.folder}/RECORD")
        if each.name in wanted and made is not None and made != each.record_sha256:
            text = "installed again by something else since the environment was made"
            yield problem("reinstalled", f"package {each.name}", text, remake)


def _same_version(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _some(paths: Sequence[str]) -> str:
    rest = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{min(paths)}{rest}"
