"""The GPUs of a machine as nvidia-smi shows them, and who computes on them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash.provision.fact import MISSING, Fact, Output

_FIELDS = (
    "index,pci.bus_id,name,memory.total,memory.used,persistence_mode,mig.mode.current,ecc.mode.current,"
    "ecc.errors.uncorrected.volatile.total,compute_mode"
)


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory in MiB. None: this model has no such thing, or the GPU did not say."""

    index: int
    address: str
    name: str
    memory: int | None
    used: int | None
    persistence: bool | None
    mig: bool | None
    ecc: bool | None
    uncorrected: int | None
    """ECC errors that could not be corrected, since the driver was loaded."""
    mode: str
    problem: str = ""
    """What it says in place of its values: that it is lost, or needs a reset."""


@dataclass(frozen=True)
class Gpus:
    """All that answered; `error` is nvidia-smi's complaint; `missing` that there is no nvidia-smi, `hung` that it never
    ended."""

    gpus: tuple[Gpu, ...] = ()
    error: str = ""
    missing: bool = False
    hung: bool = False


def same_address(one: str, other: str) -> bool:
    """Whether two addresses on the bus are one: 00000000:41:00.0, 0000:41:00.0 and 0000:41:00."""
    return _place(one) == _place(other)


def _place(address: str) -> tuple[int, ...]:
    parts = re.split("[:.]", address)[:3]
    return tuple(int(part, 16) for part in parts if re.fullmatch("[0-9a-fA-F]+", part))


def _gpus(output: Output) -> Gpus:
    if output.status == MISSING:
        return Gpus(missing=True, error="there is no nvidia-smi")
    if output.hung:
        return Gpus(hung=True, error=output.stderr)
    rows = [[cell.strip() for cell in line.split(",")] for line in output.stdout.splitlines()]
    found = tuple(_gpu(row) for row in rows if len(row) == len(_FIELDS.split(",")) and row[0].isdigit())
    # nvidia-smi complains on its standard output, over several lines.
    complaints = [",".join(row) for row in rows if len(row) != len(_FIELDS.split(","))]
    said = " ".join(line.strip() for line in (*complaints, *output.stderr.splitlines()) if line.strip())
    return Gpus(found, said if not output.ok or not found else "")


def _gpu(row: list[str]) -> Gpu:
    index, address, name, total, used, persistence, mig, ecc, errors, mode = row
    lost = [cell for cell in row if re.search(r"is lost|requires reset|Unknown Error|ERR!", cell)]
    problem = lost[0].strip("[]") if lost else ""
    return Gpu(
        index=int(index),
        address=address,
        name=name,
        memory=_number(total),
        used=_number(used),
        persistence=_on(persistence),
        mig=_on(mig),
        ecc=_on(ecc),
        uncorrected=_number(errors),
        mode=mode,
        problem=problem,
    )


def _number(cell: str) -> int | None:
    return int(cell) if cell.isdigit() else None


def _on(cell: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(cell)


GPUS = Fact("gpus", ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"), _gpus)


@dataclass(frozen=True)
class Process:
    """A process that computes on a GPU; `memory` in MiB."""

    pid: int
    name: str
    memory: int | None


def _processes(output: Output) -> tuple[Process, ...]:
    rows = [[cell.strip() for cell in line.split(",")] for line in output.stdout.splitlines()]
    found = [Process(int(row[0]), ",".join(row[1:-1]), _number(row[-1])) for row in rows if row[0].isdigit()]
    return tuple(found) if output.ok else ()


PROCESSES = Fact(
    "gpu processes",
    ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"),
    _processes,
)
