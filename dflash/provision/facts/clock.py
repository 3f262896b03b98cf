"""The clock of a machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output


@dataclass(frozen=True)
class Clock:
    """Seconds since 1970 when it was read, and whether something keeps it right; None where nobody says."""

    now: float | None
    synchronized: bool | None


# Where systemd does not run, timedatectl can wait 25 seconds for a bus that nobody answers on.
_CLOCK = """\
date +%s.%N
[ -d /run/systemd/system ] && timedatectl show -p NTPSynchronized 2>/dev/null
chronyc -n tracking 2>/dev/null | grep "^Leap status"
:
"""


def _clock(output: Output) -> Clock:
    time = re.match(r"\d+(\.\d+)?", output.stdout)
    said = re.search(r"^NTPSynchronized=(\w+)|^Leap status\s*:\s*(.+)$", output.stdout, re.MULTILINE)
    kept = None if said is None else said[1] == "yes" or said[2] == "Normal"
    return Clock(float(time[0]) if time else None, kept)


CLOCK = Fact("clock", ("sh", "-c", _CLOCK), _clock)
