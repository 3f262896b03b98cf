"""How the GPUs of a machine reach each other: the matrix, peer access, NVLink, the fabric of NVSwitches, the IOMMU."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output

Matrix = dict[tuple[int, int], str]
"""What nvidia-smi says of a pair of GPUs, both ways round."""


def _matrix(output: Output) -> Matrix:
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.stdout)  # the heading is underlined
    rows = [line.split() for line in text.splitlines()]
    heading = next((row for row in rows if row[:1] == ["GPU0"] and row[1:2] != ["X"]), [])
    columns = [int(word[3:]) for word in heading if re.fullmatch(r"GPU\d+", word)]
    found: Matrix = {}
    for row in rows:
        named = re.fullmatch(r"GPU(\d+)", row[0]) if row else None
        if named and row is not heading:
            found |= {(int(named[1]), column): said for column, said in zip(columns, row[1:], strict=False)}
    return {pair: said for pair, said in found.items() if pair[0] != pair[1]}


TOPOLOGY = Fact("topology", ("nvidia-smi", "topo", "-m"), _matrix)
"""NV18: 18 NVLinks; PIX, PXB, PHB, NODE, SYS: ever longer ways over PCIe."""
PEERS = Fact("peer access", ("nvidia-smi", "topo", "-p2p", "r"), _matrix)
"""OK where one GPU may read the other's memory; CNS, GNS, TNS, NS or U where not."""


def _nvlinks(output: Output) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    gpu = -1
    for line in output.stdout.splitlines():
        if named := re.match(r"GPU (\d+):", line):
            gpu = int(named[1])
        elif link := re.match(r"\s+Link \d+: (.+)", line):
            up, down = found.get(gpu, (0, 0))
            works = "inactive" not in link[1] and link[1].split()[0].replace(".", "", 1).isdigit()
            found[gpu] = (up + works, down + (not works))
    return found


NVLINKS = Fact("nvlinks", ("nvidia-smi", "nvlink", "-s"), _nvlinks)
"""By GPU: how many NVLinks work, and how many are down."""


@dataclass(frozen=True)
class Fabric:
    """NVSwitches of the machine; `service` is the fabric manager's state as systemd says it, "" where it does not;
    `version` its version; `states` how far each GPU has come in joining, as `nvidia-smi -q` says it."""

    switches: int
    service: str
    version: str | None
    states: tuple[str, ...]


_FABRIC = """\
for each in /dev/nvidia-nvswitch[0-9]* /proc/driver/nvidia-nvswitch/devices/*; do
    [ -e "$each" ] && echo "switch $each"
done
echo "service $(systemctl is-active nvidia-fabricmanager 2>/dev/null)"
echo "version $(nv-fabricmanager --version 2>/dev/null)"
nvidia-smi -q 2>/dev/null | grep -A 2 -E "^ +Fabric$"
:
"""


def _fabric(output: Output) -> Fabric:
    switches = Counter(re.findall(r"^switch (/\w+)/", output.stdout, re.MULTILINE))
    service = re.search(r"^service (\w*)", output.stdout, re.MULTILINE)
    version = re.search(r"^version .*?(\d+\.\d+[.\d]*)", output.stdout, re.MULTILINE)
    states = re.findall(r"^ +State +: (.+)$", output.stdout, re.MULTILINE)
    return Fabric(
        max(switches.values(), default=0),
        service[1] if service else "",
        version[1] if version else None,
        tuple(state.strip() for state in states),
    )


FABRIC = Fact("fabric", ("sh", "-c", _FABRIC), _fabric)


@dataclass(frozen=True)
class Iommu:
    """`translated` groups of devices go through the IOMMU's tables; `acs` bridges send what one GPU writes to another
    up to the root, which is slow and can hang NCCL. None where it could not be read (lspci needs root)."""

    translated: int
    acs: int | None


_IOMMU = """\
cat /sys/kernel/iommu_groups/*/type 2>/dev/null | sort | uniq -c
PATH="$PATH:/usr/sbin:/sbin"
lspci -vvv 2>/dev/null | grep -E "ACSCtl:|access denied" | sed "s/^[[:space:]]*//"
:
"""


def _iommu(output: Output) -> Iommu:
    types = {kind: int(count) for count, kind in re.findall(r"^ *(\d+) (\S+)$", output.stdout, re.MULTILINE)}
    controls = re.findall(r"^ACSCtl:(.*)$", output.stdout, re.MULTILINE)
    redirecting = sum("ReqRedir+" in control or "SrcValid+" in control for control in controls)
    known = bool(controls) or "access denied" not in output.stdout
    return Iommu(types.get("DMA", 0) + types.get("DMA-FQ", 0), redirecting if known else None)


IOMMU = Fact("iommu", ("sh", "-c", _IOMMU), _iommu)
