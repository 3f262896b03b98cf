"""`envs/<name>/env.yaml`: what an environment is, beyond the files in its lock."""

from __future__ import annotations

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
    return text


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version; one looks like '2.13.0+cpu'") from None
    return text


class EnvironmentSpec(BaseModel):
    """One environment as declared. `cuda` and `min_driver` are null for a CPU environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    python: Annotated[str, AfterValidator(_range)]
    torch: Annotated[str, AfterValidator(_version)]
    torch_backend: Literal["cpu", "cu126", "cu128", "cu129", "cu130"]
    cuda: Annotated[str, AfterValidator(_version)] | None = None
    min_driver: Annotated[str, AfterValidator(_version)] | None = None
    notes: str = ""


def read_spec(path: str | Path) -> EnvironmentSpec:
    """Read env.yaml. Raises ConfigError (file, line, column) or StorageError."""
    spec: EnvironmentSpec = validated(EnvironmentSpec, document.load(path))
    return spec
