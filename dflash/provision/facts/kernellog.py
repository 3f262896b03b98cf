"""What the kernel's log has of the NVIDIA driver since the machine started."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output


@dataclass(frozen=True)
class Xid:
    """An error that the driver logged of a GPU: its number in NVIDIA's list, the GPU's address, and what was said."""

    number: int
    address: str
    text: str


@dataclass(frozen=True)
class KernelLog:
    """`mismatches` are (client's version, module's version); `readable` is whether there was a log to read."""

    xids: tuple[Xid, ...] = ()
    mismatches: tuple[tuple[str, str], ...] = ()
    hung: tuple[str, ...] = ()
    """Programs that the kernel says have not moved for minutes."""
    readable: bool = True


_LOG = """\
log=$(dmesg 2>/dev/null) || log=$(journalctl -kb --no-pager -q 2>/dev/null) || { echo unreadable; exit 0; }
[ -n "$log" ] || { echo unreadable; exit 0; }
printf "%s\\n" "$log" | grep -E "NVRM|nvidia.*blocked for more than|blocked for more than.*nvidia" | tail -n 400
:
"""


def _kernel_log(output: Output) -> KernelLog:
    text = output.stdout
    if text.strip() == "unreadable" or not output.ok:
        return KernelLog(readable=False)
    xids = re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),? *(.*)$", text, re.MULTILINE)
    # A mismatch is told over several lines, each with the kernel's time and NVRM before it.
    joined = re.sub(r"\s+", " ", re.sub(r"^.*?NVRM: ?", " ", text, flags=re.MULTILINE))
    said = r"API mismatch: the client.*?the version ([\d.]+), but this kernel module has the version ([\d.]+)"
    pairs = [(client.rstrip("."), module.rstrip(".")) for client, module in re.findall(said, joined)]
    hung = re.findall(r"task (\S+?):\d+ blocked for more than", text)
    return KernelLog(
        tuple(Xid(int(number), address, words.strip()) for address, number, words in xids),
        tuple(dict.fromkeys(pairs)),
        tuple(dict.fromkeys(hung)),
    )


KERNEL_LOG = Fact("kernel log", ("sh", "-c", _LOG), _kernel_log)
