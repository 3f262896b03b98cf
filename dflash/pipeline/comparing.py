"""What differs between two runs, field by field, from their records; or between a run and a machine that is to do it
again, of which less is known. Pure: records are data, and so is what comes out.

A field is a path into the provenance of a record (dflash/pipeline/provenance/), such as `environment.packages.torch`.
What one side does not know is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from dflash.environments.diff import Description
from dflash.environments.diff import compare as compare_environments

Severity = Literal["tolerable", "blocking"]
Path = tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """A field of two records, as a path such as `environment.torch`. "blocking": the second can not be a replay of the
    first; "tolerable": it can, and may give other numbers, for which `cause` says how that comes about."""

    field: str
    old: Any
    new: Any
    severity: Severity
    cause: str = ""


@dataclass(frozen=True)
class _Rule:
    """What a difference in the fields that `pattern` matches, without the step that they are of, means. In `cause`,
    {name} is the field's last word, {step} that step, or the word after the first."""

    pattern: str
    severity: Severity
    cause: str


_RULES = (
    _Rule(r"data\.corpus", "blocking", "step {step} may read texts of Python's own library, and it is another's"),
    _Rule(r"data\..+", "blocking", "step {step} reads other data: {name}"),
    _Rule(r"seeds\.steps\..+", "blocking", "step {step}: another seed, so other random numbers from the first step on"),
    _Rule(r"config\.steps\.(?:\w+\.)*(?:threads|prefetch)", "tolerable", "work is shared out in another way"),
    _Rule(
        r"config\.steps\.(?:checkpoint_every|evaluate_every|min_\w+|compile_test)",
        "tolerable",
        "it decides nothing about what is learnt",
    ),
    _Rule(r"config\..+", "blocking", "step {step}: another setting"),
    _Rule(r"source\..+", "blocking", "other code: look at `git diff` between the two"),
    _Rule(r"environment\.torch", "blocking", "another torch: other kernels, other order of sums"),
    _Rule(r"seeds\.flags\..+", "tolerable", "a flag that decides which kernels run, or in which order they add"),
    _Rule(r"gpus\.models", "tolerable", "another GPU: other kernels, so other bits"),
    _Rule(
        r"cache\.snapshot",
        "tolerable",
        "graphs compiled anew may be other kernels: Triton's are chosen by how long they took when it compiled;"
        " ./inv cache.put {old} --host HOST carries over those of the first",
    ),
    _Rule(r"gpus\.(?:cuda|cudnn|nccl)", "tolerable", "another {name}: it may choose other algorithms"),
    _Rule(r"gpus\.driver", "tolerable", "another driver: it compiles PTX and schedules in its own way"),
    _Rule(r"variables\..+", "tolerable", "{name} can change what is run, or on how many threads"),
    _Rule(r"gpus\.topology", "tolerable", "GPUs reach each other by other ways: sums may be taken in another order"),
    _Rule(r"gpus\.(?:processor|cpus)", "tolerable", "another processor: other instructions, other order of sums"),
    _Rule(r"environment\.(?:python|machine|packages\..+)", "blocking", ""),  # dflash/environments/diff.py judges these
    _Rule(r"environment\.lock", "blocking", "another lock: other packages"),
    _Rule(r"libraries\.lib(?:c|m|pthread|dl|rt|stdc\+\+|gcc_s)\.so.*", "tolerable", "another system's {name}"),
    _Rule(r"environment\.libc", "tolerable", "another C library: other rounding of exp and log, perhaps"),
    _Rule(r"libraries\..+", "blocking", "other bytes of {name}, which computes or communicates"),
    _Rule(r"environment\..+", "tolerable", "the environment was made in another way"),
    _Rule(r".+", "tolerable", "it is another"),
)
"""The likeliest cause of other numbers first, among those that block and among those that do not."""

_STEPS = ("config", "steps")
_BY_STEP: tuple[Path, ...] = (
    _STEPS,
    ("seeds", "steps"),
    ("seeds", "flags"),
    ("variables", "steps"),
    ("data",),
    ("libraries",),
    ("cache",),
)
"""Maps in which the next word is the name of a step, which may have any characters: of a matrix it holds values."""
_ONE_STEP = "only one of the pipelines has this step"

_NEVER = re.compile(
    r"source\.remote|environment\.(?:name|generation|min_driver|image\.(?:commit|builder\b.*))"
    r"|config\.(?:text|overrides|argv|file|digest)"
    r"|config\.steps\.(?:.*\.)?seed"
    r"|variables\..*\.(?:PYTHONPATH|VIRTUAL_ENV|(?:DFLASH|MASTER|TORCHELASTIC|SLURM)_\w+|\w+_(?:DIR|HOME|CACHE|PTXAS_PATH))"
    r"|libraries\.(?:/.*/)?lib(?:cuda|nvidia-[\w-]+)\.so.*"
    r"|cache\.(?!snapshot$).*|(?:artifacts|metrics|attempts|predecessor)\b.*"
)
"""What came of a run, is only good to know of it, says where something lies, or is compared under another name, as the
driver's own libraries are: by its version."""

_CODE = (".py", ".cpp", ".h")

_PACKAGES = ("environment", "packages")
_OPEN: tuple[Path, ...] = (_STEPS, ("variables", "runner"), ("data",), ("seeds", "steps"), _PACKAGES)
_OPEN_BY_STEP: tuple[Path, ...] = (("libraries",), ("variables", "steps"), ("seeds", "flags"))
"""Maps in which something that only one side has is a difference, where both have the map; by step, if each is there
of the step, which has not run yet otherwise."""


def compare(old: Mapping[str, Any], new: Mapping[str, Any], accepted: Sequence[str] = ()) -> list[Difference]:
    """What differs between a run's record and another's, or what a machine was found to be in the same shape; blocking
    ones first, and of each the likeliest cause of other numbers first. What a person has `accepted`, fields or the
    beginnings of some, blocks nothing."""
    found = _differences(old, new)
    ranked = [each for _, each in sorted(found, key=lambda pair: (pair[1].severity != "blocking", *_place(pair)))]
    return [replace(each, severity="tolerable") if _is_accepted(each.field, accepted) else each for each in ranked]


def same(old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    """How many fields both know and have the same values."""
    data = _data(old, new)
    return sum(_is_same(*each, data) for each in _comparable(old, new) if None not in each[1:])


def fields(record: Mapping[str, Any]) -> set[str]:
    """Those of a record that can be compared, and what begins some, as `config.steps`."""
    parts = [(name,) for name in _known(record)]  # empty ones, too
    paths = [path for path in (*_flat(_known(record)), *parts) if not _NEVER.fullmatch(_parted(path)[1])]
    return {".".join(path[:end]) for path in paths for end in range(1, len(path) + 1)}


def with_lines(differences: Sequence[Difference], first_other: Callable[[str, str], int | None]) -> list[Difference]:
    """The same, where those in data also name the first line that is another: `first_other` of step and file, None of
    what is none."""
    told = []
    for each in differences:
        part, *words = each.field.split(".")
        ways = range(1, len(words) if part == "data" else 0)  # a step's name may have points in it, and so has a file's
        lines = (first_other(".".join(words[:way]), ".".join(words[way:])) for way in ways)
        line = next((line for line in lines if line), None)
        told.append(replace(each, cause=f"{each.cause}, from line {line} on") if line else each)
    return told


def _is_accepted(field: str, accepted: Sequence[str]) -> bool:
    return any(field == each or field.startswith(f"{each}.") for each in accepted)


def _known(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The provenance; of a run from before there was one, what its record has of it."""
    if provenance := record.get("provenance"):
        return dict(provenance)
    names = {"lock": "lock_id", "python": "python", "torch": "torch"}
    environment = {name: record.get(there) for name, there in names.items()}
    return {"source": {name: record.get(name) for name in ("commit", "dirty")}, "environment": environment}


def _flat(value: Any, path: Path = ()) -> dict[Path, Any]:
    if isinstance(value, Mapping):
        return {inner: leaf for name, each in value.items() for inner, leaf in _flat(each, (*path, str(name))).items()}
    return {path: value}


def _root(path: Path) -> Path | None:
    """The open map that a field is in."""
    for root in _OPEN_BY_STEP:
        if path[: len(root)] == root:
            return path[: len(root) + 1]
    return next((root for root in _OPEN if path[: len(root)] == root), None)


def _has(record: Mapping[str, Any], root: Path) -> bool:
    """Whether a record has a map, empty perhaps."""
    found: Any = _known(record)
    for name in root:
        found = found.get(name) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping)


def _comparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[Path, Any, Any]]:
    """Each field that can be compared, with both values."""
    before, after = _flat(_known(old)), _flat(_known(new))
    for path in dict.fromkeys([*before, *after]):
        step, field = _parted(path)
        if _NEVER.fullmatch(field) or (step and path[0] == "cache" and not _is_compiled_otherwise(step, old, new)):
            continue
        root, values = _root(path), (before.get(path), after.get(path))
        known = _has(old, root) and _has(new, root) if root else None not in values
        if known:
            yield path, *values


def _is_compiled_otherwise(step: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether another snapshot of a step's compiled graphs may compute otherwise. What is compiled for processors is
    decided by the code that is generated; its files differ by where and when that was done."""
    runs = _known(old), _known(new)
    settings = [each for run in runs for each in ((run.get("config") or {}).get("steps") or {}).values()]
    if any(isinstance(each, Mapping) and each.get("device") == "cuda" for each in settings):
        return True
    files = [(run.get("artifacts") or {}).get(step) or {} for run in runs]
    code = [{path: each["sha256"] for path, each in side.items() if path.endswith(_CODE)} for side in files]
    return code[0] != code[1]


def _is_same(path: Path, old: Any, new: Any, data: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two values mean the same. A file lies elsewhere on another machine; its content is in the `data` of both
    runs, by its name from beside what the setting names."""
    if old == new or path[: len(_STEPS)] != _STEPS or not (isinstance(old, str) and isinstance(new, str)):
        return bool(old == new)
    named, step = PurePath(old).name, _parted(path)[0] or ""
    files = [name for side in data for name in side.get(step) or ()]
    is_file = any(fnmatchcase(name, named) or named in PurePath(name).parts[:1] for name in files)
    return "/" in old + new and named == PurePath(new).name and is_file


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[Path, Difference]]:
    fields, data = list(_comparable(old, new)), _data(old, new)
    steps = [
        {path[2] for path, *values in fields if path[:2] == _STEPS and values[side] is not None} for side in (0, 1)
    ]
    lonely = steps[0] ^ steps[1]
    for name in sorted(lonely):
        field = (*_STEPS, name)
        yield field, Difference(".".join(field), name in steps[0], name in steps[1], "blocking", _ONE_STEP)
    for path, before, after in fields:
        if _parted(path)[0] not in lonely and not _is_same(path, before, after, data):
            yield path, _judged(path, before, after, _known(old), _known(new))


def _data(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [_known(side).get("data") or {} for side in (old, new)]


def _parted(path: Path) -> tuple[str | None, str]:
    """The step that a field is of, if it is of one, and the field without it."""
    for root in _BY_STEP:
        if path[: len(root)] == root and len(path) > len(root):
            return path[len(root)], ".".join((*root, *path[len(root) + 1 :]))
    return None, ".".join(path)


def _judged(path: Path, old: Any, new: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference:
    field, (step, _) = ".".join(path), _parted(path)
    rule = _RULES[_rank(path)]
    cause = rule.cause.format(name=path[-1], step=step or path[min(1, len(path) - 1)], old=old)
    severity = rule.severity
    environment = before.get("environment") or {}
    if path[0] == "environment" and path[1] in ("packages", "python", "machine"):
        severity, cause = _environment(path, old, new)
    elif (
        field == "environment.lock" and environment.get("packages") and (after.get("environment") or {}).get("packages")
    ):
        severity, cause = "tolerable", "another lock; what it pins otherwise is compared by itself"
    elif path[0] == "libraries" and severity == "blocking" and None in (old, new):
        severity, cause = "tolerable", f"{path[-1]} was loaded on one side alone"
    elif field == "gpus.models" and len(new) < len(old):
        severity, cause = "blocking", f"{len(new)} GPUs, where the run had {len(old)}"
    elif field == "gpus.driver" and _is_older(new, needed := environment.get("min_driver")):
        severity, cause = "blocking", f"driver {new} < {needed}, which torch {environment.get('torch')} needs"
    return Difference(field, old, new, severity, cause)


def _environment(path: Path, old: Any, new: Any) -> tuple[Severity, str]:
    """As two environments are compared anywhere."""
    name = f"package {path[2]}" if path[1] == "packages" else path[1]
    sides = [{"package": "", **({name: str(value)} if value is not None else {})} for value in (old, new)]
    for each in compare_environments(Description("old", sides[0]), Description("new", sides[1])):
        if each.field == name:
            return "blocking" if each.verdict == "blocking" else "tolerable", each.why
    return "tolerable", "only one side says"


def _is_older(version: Any, needed: Any) -> bool:
    try:
        return bool(needed) and Version(str(version)) < Version(str(needed))
    except InvalidVersion:
        return False


def _rank(path: Path) -> int:
    field = _parted(path)[1]
    return next(index for index, rule in enumerate(_RULES) if re.fullmatch(rule.pattern, field))


def _place(pair: tuple[Path, Difference]) -> tuple[int, str]:
    return _rank(pair[0]), pair[1].field
