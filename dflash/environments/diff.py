"""What differs between two environments, worst first, and what that means for a run.

A description is data: a name and fields. It is made from a declaration, from a generation of a host, from a host or
from a run's record; comparing two is a pure function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dflash.environments.lock import Lock
from dflash.environments.remote import ID_LENGTH, Reading, marker_variables
from dflash.environments.spec import EnvironmentSpec

Verdict = Literal["blocking", "tolerable", "same"]
VERDICTS: tuple[Verdict, ...] = ("blocking", "tolerable", "same")

_LIBRARIES = re.compile(
    r"lib(?:cudart|cublas|cublasLt|cudnn\w*|nccl|cufft|cusparse|cusparseLt|cusolver|nvrtc|nvJitLink)\.so\S*"
)


@dataclass(frozen=True)
class Description:
    """Everything that can be said of one side, as texts by field. Package versions are `package NAME`, the hashes of
    CUDA's libraries `library NAME`, and `driver_needed` is the oldest driver that its CUDA build runs on."""

    name: str
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """One field of both sides (None where a side does not have it), what that means, and why."""

    field: str
    a: str | None
    b: str | None
    verdict: Verdict
    why: str

    def to_json(self) -> dict[str, str | None]:
        """Plain values."""
        return asdict(self)


def of_declaration(spec: EnvironmentSpec, lock: Lock, beside: Description | None = None) -> Description:
    """What a folder below envs/ declares, for the Python and machine of what it is compared with; by itself, for its
    oldest Python on x86-64."""
    python, machine = f"{spec.oldest_python}.0", "x86_64"
    if beside and re.fullmatch(r"\d+\.\d+\.\d+.*", beside.fields.get("python", "")):
        python, machine = beside.fields["python"], beside.fields.get("machine", machine)
    pinned = lock.here(marker_variables(python, machine))
    fields = {
        "lock": lock.id[:ID_LENGTH],
        "python": spec.python,
        **_declared(spec),
        **{f"package {name}": each.version for name, each in pinned.items()},
    }
    return Description(f"envs/{spec.name}", fields)


def of_reading(name: str, spec: EnvironmentSpec | None, reading: Reading) -> Description:
    """What is on a host."""
    snapshot, around = reading.snapshot, reading.surroundings
    record = snapshot.record
    fields = {"machine": around.machine, **(_declared(spec) if spec else {})}
    if record:
        fields |= {"lock": record.lock[:ID_LENGTH], "python": record.python}
    elif snapshot.stamp:
        fields |= {"lock": snapshot.stamp.get("lock", "")[:ID_LENGTH], "python": snapshot.stamp.get("python", "")}
    if around.driver:
        fields["driver"] = around.driver
    fields |= {f"variable {key}": value for key, value in around.variables.items()}
    for each in snapshot.distributions:
        fields[f"package {each.name}"] = each.version
    for path, file in snapshot.files.items():
        library = path.rpartition("/")[2]
        if _LIBRARIES.fullmatch(library) and file.sha256:
            fields[f"library {library}"] = file.sha256[:ID_LENGTH]
    return Description(name, fields)


def of_run(record: Mapping[str, object], spec: EnvironmentSpec | None, lock: Lock | None) -> Description:
    """What a run's record says. `spec` and `lock` are those of its commit, when they could be found."""
    fields = {"lock": str(record.get("lock_id") or "")[:ID_LENGTH], "python": str(record.get("python") or "")}
    if record.get("torch"):
        fields["package torch"] = str(record["torch"])
    if spec and lock:
        pinned = lock.here(marker_variables(fields["python"], "x86_64"))
        fields |= {**_declared(spec), **{f"package {name}": each.version for name, each in pinned.items()}}
    return Description(f"run {record.get('id')}", fields)


def _declared(spec: EnvironmentSpec) -> dict[str, str]:
    return {"cuda": spec.cuda or "none", "driver_needed": spec.min_driver or "none"}


def compare(a: Description, b: Description) -> list[Difference]:
    """Every field of both, worst first. Fields that only one kind of side can have are left out: a declaration has no
    driver, a run's record no hashes of libraries."""
    found = [_judge(name, a.fields.get(name), b.fields.get(name)) for name in _comparable(a, b)]
    return sorted(found, key=lambda each: (VERDICTS.index(each.verdict), each.field))


def _comparable(a: Description, b: Description) -> Iterator[str]:
    kinds = [{name.partition(" ")[0] for name in side.fields} for side in (a, b)]
    for name in sorted(a.fields.keys() | b.fields.keys()):
        kind = name.partition(" ")[0]
        # A variable that is set on one side alone is a difference; a package list that one side has not is none.
        if kind == "variable" or (kind in kinds[0] and kind in kinds[1]):
            yield name


_COMPUTES = re.compile(
    r"torch.*|triton.*|pytorch-triton|transformers|tokenizers|safetensors|numpy|scipy|nvidia-.*|cuda-.*|cupy.*|sgl.*"
    r"|flash.*|vllm.*|xformers|apache-tvm.*|tilelang|quack.*|deep-gemm|mooncake.*|outlines.*|xgrammar|llguidance"
)
"""Packages whose version can change what a model computes, or which kernels do it."""


def _judge(name: str, a: str | None, b: str | None) -> Difference:
    if a == b:
        return Difference(name, a, b, "same", "")
    kind, _, what = name.partition(" ")
    verdict: Verdict = "tolerable"
    if kind == "package" and _COMPUTES.fullmatch(what):
        verdict, why = "blocking", "it computes: numbers and compiled graphs can differ"
    elif kind == "package":
        why = "it does not compute anything"
    elif kind == "library":
        verdict, why = "blocking", "other bytes of a library that computes or communicates"
    elif kind == "cuda":
        verdict, why = "blocking", "another CUDA: other kernels"
    elif kind == "machine":
        verdict, why = "blocking", "another processor: other wheels, other rounding"
    elif kind == "python":
        verdict, why = _pythons(a or "", b or "")
    elif kind == "driver":
        why = "both are new enough for what runs on them, or env.verify says so"
    elif kind == "driver_needed":
        why = "a host needs the newer of the two for both"
    elif kind == "variable":
        why = "env.verify says whether it hides anything"
    else:
        why = "what it pins is compared below"
    return Difference(name, a, b, verdict, why)


def _pythons(a: str, b: str) -> tuple[Verdict, str]:
    for wanted, version in ((a, b), (b, a)):
        try:
            if SpecifierSet(wanted).contains(version, prereleases=True):
                return "same", "in the range"
        except InvalidSpecifier:
            continue
    if a.split(".")[:2] == b.split(".")[:2]:
        return "tolerable", "the same minor version: the same wheels"
    return "blocking", "another minor version: other wheels, other bytecode"
