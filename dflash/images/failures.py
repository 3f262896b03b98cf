"""What can go wrong with images, each with what to do.

ImageError
├── EngineMissing     no docker, no buildx, no engine that answers, or one that can not do it
├── BaseMissing       a base that can not be pulled
├── BuildFailed       a step of a Dockerfile failed
│   └── StoreBusy     the engine's store was locked for a moment; worth another try
├── RegistryFailed    a registry is down, does not know us or does not have it
├── WrongDigest       there are other bytes than the digest says
└── NotReproducible   two builds of the same differ
"""

from __future__ import annotations

from dflash.errors import DFlashError


class ImageError(DFlashError):
    """Something about an image can not be done."""

    exit_code = 9


class EngineMissing(ImageError):
    """There is no Docker engine here that can do it."""


class BaseMissing(ImageError):
    """The base can not be had."""


class BuildFailed(ImageError):
    """A step of the Dockerfile failed."""


class StoreBusy(BuildFailed):
    """The engine's store was locked by itself: containerd's writer of one layer met another of the same."""


class RegistryFailed(ImageError):
    """A registry did not give or take the image."""


class WrongDigest(ImageError):
    """The bytes are not those that the digest names."""


class NotReproducible(ImageError):
    """Two builds of the same commit, lock and base are not the same bytes."""
