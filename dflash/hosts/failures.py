"""What can go wrong on the way to a command, each with the layer it happened on.

HostError
├── Unreachable        a layer could not be entered: cannot resolve, refused, timed out, no such tool
├── HostKeyChanged     the machine is not the one that was known
├── LoginFailed        the machine is there, and does not let us in
├── ContainerMissing   the layer above has no such container
├── ContainerStopped   it has, and it does not run
├── NoPython           the layer was entered, and has no python3 for the agent
├── ProgramMissing     the layer works, and has no such program or directory
├── TimedOut           the layer works, and a command there did not end in the time it was given
└── LostConnection     the stream broke; says what became of the commands
"""

from __future__ import annotations

from dflash.errors import DFlashError


class HostError(DFlashError):
    """A layer of a chain failed. `layer` is the chain as far as that layer, `where` the same for a person."""

    exit_code = 255

    def __init__(self, what: str, *, layer: str, cure: str | None = None) -> None:
        super().__init__(what, where=layer, cure=cure)
        self.layer = layer


class Unreachable(HostError):
    """The layer can not be entered."""


class HostKeyChanged(HostError):
    """The host key is not the one on record."""


class LoginFailed(HostError):
    """Authentication, or sudo, was refused."""


class ContainerMissing(HostError):
    """There is no such container on the layer above."""


class ContainerStopped(HostError):
    """The container does not run."""


class NoPython(HostError):
    """There is no python3 of at least 3.8."""


class ProgramMissing(HostError):
    """The program, or its working directory, does not exist or can not be executed."""

    exit_code = 127


class TimedOut(HostError):
    """A command did not end in its time, and was killed, if the kernel there lets go of it."""

    exit_code = 124


class LostConnection(HostError):
    """The stream ended in the middle."""
