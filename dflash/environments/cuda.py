"""Judges what is special about CUDA environments: libraries of several majors, a shared folder, triton, the driver.

Pure functions from what was read to findings.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from dflash.environments.problems import problem
from dflash.environments.snapshot import Distribution, Snapshot
from dflash.environments.spec import EnvironmentSpec
from dflash.environments.surroundings import Surroundings
from dflash.finding import Finding

_ENGINES = {
    "sglang": r"sglang|sgl_kernel|sglang_kernel|sglang_router",
    "flashinfer": r"flashinfer\w*",
    "vllm": r"vllm\w*",
}
"""Inference engines, by the names of their folders: what most often gets into a training environment."""
_RUNTIME = re.compile(r"libcudart\.so\.(\d+)")


def judge_cuda(spec: EnvironmentSpec, snapshot: Snapshot, remake: str) -> list[Finding]:
    """Everything about CUDA that can be told from the files alone."""
    return [
        *mixed_majors(spec, snapshot, remake),
        *lost_from_namespace(snapshot.distributions, snapshot.files, remake),
        *leftovers(snapshot, remake),
        *triton_of_torch(snapshot.distributions, remake),
    ]


def mixed_majors(spec: EnvironmentSpec, snapshot: Snapshot, remake: str) -> Iterator[Finding]:
    """Libraries for another CUDA than the environment's: by the names of packages, and by their files, which tell
    even when the packages' metadata is gone."""
    others: dict[int, list[str]] = defaultdict(list)
    for each in snapshot.distributions:
        named = re.fullmatch(r"nvidia-.*-cu(\d+)", each.name)
        if named and int(named[1]) != spec.cuda_major and each.name not in spec.allowed_conflicts:
            others[int(named[1])].append(each.name)
    for path in snapshot.files:
        runtime = _RUNTIME.fullmatch(path.rpartition("/")[2])
        if runtime and int(runtime[1]) != spec.cuda_major:
            others[int(runtime[1])].append(path)
    for major, found in sorted(others.items()):
        own = f"beside those for CUDA {spec.cuda_major}" if spec.cuda_major else "in an environment without CUDA"
        text = f"libraries for CUDA {major} {own}: {', '.join(sorted(set(found))[:3])}"
        yield problem("cuda-mixed", f"CUDA {major}", text, remake)


def in_namespace(path: str) -> bool:
    """Whether a file lies in the folder that NVIDIA's packages share."""
    return "/site-packages/nvidia/" in path


def lost_from_namespace(distributions: Iterable[Distribution], files: Iterable[str], remake: str) -> Iterator[Finding]:
    """Files of installed packages that are gone from the shared folder."""
    there = set(files)
    for each in distributions:
        gone = sorted(path for path in each.claims if in_namespace(path) and path not in there)
        if gone:
            more = f" and {len(gone) - 1:,} more" if len(gone) > 1 else ""
            yield problem("namespace-lost", f"package {each.name}", f"has lost {gone[0]}{more}", remake)


def leftovers(snapshot: Snapshot, remake: str) -> Iterator[Finding]:
    """Folders and files of inference engines that no package owns, and what pip could not finish removing."""
    owned = {path for each in snapshot.distributions for path in each.claims}
    strays: dict[str, list[str]] = defaultdict(list)
    for path in snapshot.files.keys() - owned:
        top = path.partition("/site-packages/")[2].partition("/")[0]
        if top.startswith("~"):
            strays["a package"].append(path)
        for engine, names in _ENGINES.items():
            if re.fullmatch(rf"(?:{names})(?:[-.].*)?", top):
                strays[engine].append(path)
    for engine, paths in sorted(strays.items()):
        more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
        yield problem("leftover", f"leftovers of {engine}", f"no package owns {min(paths)}{more}", remake)


def triton_of_torch(distributions: Iterable[Distribution], remake: str) -> Iterator[Finding]:
    """torch's METADATA pins the triton that its inductor was made for."""
    by_name = {each.name: each for each in distributions}
    if "torch" not in by_name:
        return
    for text in by_name["torch"].requires:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        installed = by_name.get("triton")
        if wanted.name != "triton" or installed is None:
            continue
        if not wanted.specifier.contains(installed.version, prereleases=True):
            found = f"{installed.version} is installed; torch {by_name['torch'].version} asks for {wanted.specifier}"
            yield problem("triton-mismatch", "triton", found, remake)


def driver(spec: EnvironmentSpec, around: Surroundings) -> Iterator[Finding]:
    """Whether the host's driver is new enough for the CUDA build."""
    if spec.min_driver is None:
        return
    if around.driver is None:
        found, cure = f"there is none; CUDA {spec.cuda} needs {spec.min_driver}", "install it on the host: ./inv check"
        yield problem("no-driver", "NVIDIA driver", found, cure, "warn")
    elif Version(around.driver) < Version(spec.min_driver):
        found = f"{around.driver} is too old for CUDA {spec.cuda}, which needs {spec.min_driver}"
        cure = f"install {spec.min_driver} or newer on the host, or use an environment for an older CUDA"
        yield problem("driver-too-old", "NVIDIA driver", found, cure)
    else:
        yield Finding("ok", "NVIDIA driver", around.driver)
