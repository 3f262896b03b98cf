"""An LXD or Incus instance; both programs have the same form."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.hosts.chain import Incus, Lxd
from dflash.hosts.failures import ContainerMissing, ContainerStopped, HostError, Unreachable


def wrap(hop: Lxd | Incus, argv: Sequence[str]) -> list[str]:
    """`-T`: no terminal in between, which would merge the streams and add carriage returns."""
    program, name = _client(hop)
    return [program, "exec", name, "-T", "--", *argv]


def classify(hop: Lxd | Incus, layer: str, status: int | None, stderr: str) -> HostError | None:
    """The client's last `Error:` line tells; the lines before it greet who runs the client for the first time."""
    errors = [line.removeprefix("Error:").strip() for line in stderr.splitlines() if line.startswith("Error:")]
    if not errors:
        return None
    program, name = _client(hop)
    start = f"{program} start {name} there"
    match errors[-1]:
        case said if said.endswith("Instance not found"):
            return ContainerMissing(f"there is no {hop}", layer=layer)
        case said if said.endswith("Instance is not running"):
            return ContainerStopped(f"{hop} does not run", layer=layer, cure=start)
        case said if said.endswith("Instance is frozen"):
            return ContainerStopped(f"{hop} is frozen", layer=layer, cure=start)
        case "Command not found":  # of all commands, the instance lacks the one that every hop begins with
            return Unreachable(f"{hop} has no sh", layer=layer)
        case said if "dial unix " in said:
            reason = said.partition("dial unix ")[2]
            return Unreachable(f"the daemon does not answer this user ({reason})", layer=layer)
        case said:
            return Unreachable(said, layer=layer)


def _client(hop: Lxd | Incus) -> tuple[str, str]:
    """The program that leads into the instance, and its name for it. LXD's is called lxc, and is none of LXC's."""
    if isinstance(hop, Lxd):
        return "lxc", hop.name
    return "incus", f"{hop.remote}:{hop.name}" if hop.remote else hop.name
