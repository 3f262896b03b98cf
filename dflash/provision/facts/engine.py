"""The Docker engine of a machine, and how NVIDIA's container toolkit is set up beside it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from dflash.provision.fact import MISSING, Fact, Output


@dataclass(frozen=True)
class Engine:
    """`there` is whether there is a docker client; `error` why the engine did not answer it."""

    there: bool
    error: str = ""
    version: str = ""
    runtimes: tuple[str, ...] = ()
    cgroup_driver: str = ""
    root: str = ""


def _engine(output: Output) -> Engine:
    if output.status == MISSING:
        return Engine(False)
    if output.hung:
        return Engine(True, "it does not answer")
    try:
        said = json.loads(output.stdout)
    except ValueError:
        said = {}
    errors = said.get("errors") or output.stderr.strip().splitlines()[-1:]
    if not said.get("version"):
        return Engine(True, str(errors[0]) if errors else f"docker info ended with {output.status}")
    return Engine(
        True,
        "",
        str(said["version"]),
        tuple(sorted(said.get("runtimes") or ())),
        str(said.get("cgroups", "")),
        str(said.get("root", "")),
    )


# Not all that it knows: that has the machine's name and its proxies' passwords in it.
_FORMAT = (
    '{"version":{{json .ServerVersion}},"runtimes":{{json .Runtimes}},"cgroups":{{json .CgroupDriver}},'
    '"root":{{json .DockerRootDir}},"errors":{{json .ServerErrors}}}'
)
ENGINE = Fact("docker", ("docker", "info", "--format", _FORMAT), _engine)


@dataclass(frozen=True)
class Toolkit:
    """NVIDIA's container toolkit: its version, None where it is not installed; whether its configuration says
    no-cgroups; the driver's versions that the files of /etc/cdi and /var/run/cdi name."""

    version: str | None
    no_cgroups: bool = False
    cdi: tuple[str, ...] = ()


_TOOLKIT = """\
nvidia-ctk --version 2>/dev/null || nvidia-container-cli --version 2>/dev/null
grep -sE "^[[:space:]]*no-cgroups" /etc/nvidia-container-runtime/config.toml
grep -shoE "lib(cuda|nvidia-ml)\\.so\\.[0-9]+\\.[0-9.]+[0-9]" /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml \\
    /var/run/cdi/*.json | sort -u
:
"""


def _toolkit(output: Output) -> Toolkit:
    version = re.search(r"(?:Toolkit CLI version|cli-version:|version:) *(\d[\w.]*)", output.stdout)
    named = re.findall(r"^lib(?:cuda|nvidia-ml)\.so\.([\d.]+)$", output.stdout, re.MULTILINE)
    return Toolkit(
        version[1] if version else None,
        bool(re.search(r"^\s*no-cgroups\s*=\s*true", output.stdout, re.MULTILINE)),
        tuple(dict.fromkeys(named)),
    )


TOOLKIT = Fact("nvidia toolkit", ("sh", "-c", _TOOLKIT), _toolkit)
