"""`envs/<name>/env.yaml`: what an environment is, beyond the files in its lock."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict

from dflash import document
from dflash.validation import validated


def _range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is not a version range; one looks like '>=3.11,<3.14'") from None
    if not any(each.operator in (">=", "==") for each in SpecifierSet(text)):
        raise ValueError(f"{text!r} names no oldest Python, for which a lock is resolved; write '>=3.11,<3.14', say")
    return text


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version; one looks like '2.13.0+cpu'") from None
    return text


def _index_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", text):
        raise ValueError(f"{text!r} is not an index's name; addresses belong to the machine, not here")
    return text


class EnvironmentSpec(BaseModel):
    """One environment as declared. `cuda` and `min_driver` are null for a CPU environment.

    `torch` is the version of torch's distribution, as the lock pins it. `platform` is what the lock is resolved for,
    in uv's words. `indexes` names the indexes beside the default one that have some of the files. `allowed_conflicts`
    are paths below site-packages that two distributions may own, and whose content therefore may be either's, and
    distributions that are for another CUDA.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    python: Annotated[str, AfterValidator(_range)]
    torch: Annotated[str, AfterValidator(_version)]
    torch_backend: Literal["cpu", "cu126", "cu128", "cu129", "cu130"]
    cuda: Annotated[str, AfterValidator(_version)] | None = None
    min_driver: Annotated[str, AfterValidator(_version)] | None = None
    platform: Literal["universal", "x86_64-manylinux_2_28", "x86_64-manylinux_2_34"] = "universal"
    indexes: tuple[Annotated[str, AfterValidator(_index_name)], ...] = ()
    allowed_conflicts: tuple[str, ...] = ()
    notes: str = ""

    @property
    def cuda_major(self) -> int | None:
        """12, 13 or None."""
        return Version(self.cuda).major if self.cuda else None

    @property
    def oldest_python(self) -> str:
        """The lower end of `python`, such as `3.11`: what a lock is resolved for."""
        lower = (each.version for each in SpecifierSet(self.python) if each.operator in (">=", "=="))
        return min((text.removesuffix(".*") for text in lower), key=Version)


def read_spec(path: str | Path) -> EnvironmentSpec:
    """Read env.yaml. Raises ConfigError (file, line, column) or StorageError."""
    spec: EnvironmentSpec = validated(EnvironmentSpec, document.load(path))
    return spec
