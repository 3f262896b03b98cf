"""Judges what hides an environment's own files from a process: variables, an earlier entry of the path, a user's site.

Pure functions from what was read to findings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from packaging.version import InvalidVersion, Version

from dflash.environments.problems import problem
from dflash.environments.snapshot import Distribution, Snapshot
from dflash.environments.spec import EnvironmentSpec
from dflash.environments.surroundings import Surroundings
from dflash.finding import Finding


def judge_surroundings(spec: EnvironmentSpec, snapshot: Snapshot, around: Surroundings) -> list[Finding]:
    """What would lead a process of this environment astray, started there as it is now."""
    return [
        *library_path(snapshot, around),
        *python_path(snapshot, around),
        *toolkit(spec, around),
        *outer_packages(snapshot),
    ]


def library_path(snapshot: Snapshot, around: Surroundings) -> Iterator[Finding]:
    """LD_LIBRARY_PATH beats the paths that wheels build into their libraries."""
    own = {PurePosixPath(path).name for path in snapshot.files if ".so" in path}
    for folder, names in around.libraries.items():
        hidden = sorted(own & set(names))
        if hidden:
            more = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
            found = f"{folder} has {hidden[0]}{more}, which the environment has too"
            yield problem("ld-library-path", "LD_LIBRARY_PATH", found, "unset LD_LIBRARY_PATH")


def python_path(snapshot: Snapshot, around: Surroundings) -> Iterator[Finding]:
    """PYTHONPATH comes before site-packages; PYTHONHOME replaces the standard library; a user's own site-packages
    counts where pyvenv.cfg lets it in."""
    if "PYTHONHOME" in around.variables:
        found = f"is set to {around.variables['PYTHONHOME']}"
        yield problem("pythonhome", "PYTHONHOME", found, "unset PYTHONHOME")
    own = top_levels(snapshot.distributions)
    listed = around.variables.get("PYTHONPATH", "").split(os.pathsep)
    for entry, names in around.modules.items():
        from_variable = entry in listed
        if not (from_variable or _lets_outer_in(snapshot)):
            continue
        hidden = sorted(own & {name.split(".", 1)[0] for name in names})
        if hidden:
            cure = "unset PYTHONPATH" if from_variable else f"move {entry} away"
            where = "PYTHONPATH" if from_variable else "user site-packages"
            yield problem("pythonpath", where, f"{entry} hides {', '.join(hidden[:3])}", cure)


def toolkit(spec: EnvironmentSpec, around: Surroundings) -> Iterator[Finding]:
    """CUDA_HOME is where extensions and kernels are compiled from at run time."""
    if spec.cuda_major is None or around.toolkit is None:
        return
    try:
        major = Version(around.toolkit).major
    except InvalidVersion:
        return
    if major != spec.cuda_major:
        found = f"leads to CUDA {around.toolkit}; the environment is for {spec.cuda}"
        yield problem("cuda-home", "CUDA_HOME", found, "unset CUDA_HOME and CUDA_PATH")


def outer_packages(snapshot: Snapshot) -> Iterator[Finding]:
    """A virtual environment that lets the interpreter's own packages in is no closed set of files."""
    if _lets_outer_in(snapshot):
        found = "include-system-site-packages = true"
        yield problem("system-site", "pyvenv.cfg", found, "make the environment again without it")


def _lets_outer_in(snapshot: Snapshot) -> bool:
    return (snapshot.settings or {}).get("include-system-site-packages", "false").lower() == "true"


def shadows(
    path: Sequence[str], prefix: Path, names: Iterable[str], listing: Mapping[str, Iterable[str]]
) -> list[Finding]:
    """Packages that an earlier entry of the running interpreter's `path` hides.

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
            text = f"hidden by {where}, which is found first"
            found.append(problem("pythonpath", f"package {name}", text, f"unset PYTHONPATH, or move {where} away"))
    return found


def top_levels(distributions: Iterable[Distribution]) -> set[str]:
    """The names by which what is installed is imported."""
    tops = set()
    for each in distributions:
        site = each.folder.rsplit("/", 1)[0] + "/"
        for path in each.claims:
            if path.startswith(site) and path.endswith((".py", ".so")):
                tops.add(path[len(site) :].split("/", 1)[0].split(".", 1)[0])
    return tops


def listing(path: Iterable[str]) -> dict[str, list[str]]:
    """The names in each entry of a path which hide others."""
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


def _importable(name: str) -> bool:
    return name.endswith((".py", ".so")) or "." not in name
