"""`docker/bases.yaml` and `docker/images.yaml`: what images are built on, and which there are to build."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from dflash import document
from dflash.errors import UsageError
from dflash.validation import suggestion, validated

DIGEST = r"sha256:[0-9a-f]{64}"
_NAME = r"[a-z0-9][a-z0-9.-]*"
_REPOSITORY = r"[a-z0-9][a-z0-9._-]*(?::[0-9]+)?(?:/[a-z0-9][a-z0-9._-]*)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"


def _matching(pattern: str, rule: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(f"{text!r} is not {rule}")
        return text

    return check


Digest = Annotated[str, AfterValidator(_matching(DIGEST, "a digest; one looks like sha256: and 64 hexadecimal digits"))]
Repository = Annotated[
    str, AfterValidator(_matching(_REPOSITORY, "a repository; one looks like nvidia/cuda, without a tag or a digest"))
]
Tag = Annotated[str, AfterValidator(_matching(_TAG, "a tag; one looks like 13.0.1-base-ubuntu24.04"))]
Package = Annotated[str, AfterValidator(_matching(r"[a-z0-9][a-z0-9.+-]+", "the name of a Debian package"))]
Source = Annotated[str, AfterValidator(_matching(r"deb .+/[0-9]{8}T[0-9]{6}Z .+", "a line `deb ADDRESS/DATE SUITE …`"))]
FileName = Annotated[str, AfterValidator(_matching(r"[a-z0-9.-]+\.Dockerfile", "a NAME.Dockerfile beside this file"))]


class Base(BaseModel):
    """A base image. `repository@digest` is what is pulled; `mirrors` are other repositories that have the digest.

    `packages` are installed on it from `sources`, lines of sources.list whose archive is a snapshot of one moment.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: Repository
    release: Tag
    digest: Digest
    mirrors: tuple[Repository, ...] = ()
    packages: tuple[Package, ...] = ()
    sources: tuple[Source, ...] = ()


class Image(BaseModel):
    """An image to build: a Dockerfile of `docker/`, an environment of `envs/`, a base by its name or none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dockerfile: FileName
    environment: str
    base: str | None = None


def read_bases(file: Path) -> dict[str, Base]:
    """Every base by name. Raises ConfigError (file, line, column) or StorageError."""
    return _named(Base, file, "bases")


def read_images(file: Path, bases: Mapping[str, Base]) -> dict[str, Image]:
    """Every image by name, each with a base that is there. Raises ConfigError (file, line, column) or StorageError."""
    images = _named(Image, file, "images")
    known = document.load(file)
    for name, image in images.items():
        if image.base is not None and image.base not in bases:
            cure = suggestion(image.base, bases, "bases")
            raise known.error(f"there is no base {image.base!r}", (name, "base"), cure=cure)
    return images


def chosen(images: Mapping[str, Image], name: str) -> Image:
    """The image of that name. Raises UsageError when there is none."""
    if name not in images:
        raise UsageError(f"there is no image {name!r}", cure=suggestion(name, images, "images"))
    return images[name]


def parse_pinned(reference: str) -> tuple[str, str]:
    """(repository, digest) of REPOSITORY@sha256:…; UsageError for anything else, as a tag can be moved."""
    repository, _, digest = reference.partition("@")
    if re.fullmatch(_REPOSITORY, repository) and re.fullmatch(DIGEST, digest):
        return repository, digest
    what = f"{reference!r} is not an image by its digest; a tag can be moved"
    raise UsageError(what, cure="write REPOSITORY@sha256:…, which ./inv build prints")


def parse_tagged(reference: str, tag: str) -> tuple[str, str]:
    """(repository, tag) of REPOSITORY[:TAG], with `tag` where none is given. Raises UsageError."""
    found = re.fullmatch(rf"({_REPOSITORY}?)(?::({_TAG}))?", reference)
    if not found:
        what = f"{reference!r} is not a place to push to"
        raise UsageError(what, where="--push", cure="write REPOSITORY or REPOSITORY:TAG; the digest comes by itself")
    return found[1], found[2] or tag


def _named(kind: Any, file: Path, noun: str) -> dict[str, Any]:
    read = document.load(file)
    if not isinstance(read.data, dict):
        raise read.error(f"this is a map from names to {noun}")
    for name in read.data:
        if not re.fullmatch(_NAME, name, re.ASCII):
            raise read.error(f"{name!r} is not a name: small letters, digits, '.' and '-'", (name,), key=True)
    return {name: validated(kind, read, (name,)) for name in read.data}
