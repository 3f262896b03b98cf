"""Judges the errors that the driver logged (NVIDIA's list of Xid errors)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dflash.finding import Finding
from dflash.provision.checks.faults import fault
from dflash.provision.facts.gpus import Gpus, same_address
from dflash.provision.facts.kernellog import KernelLog, Xid


@dataclass(frozen=True)
class Meaning:
    """What a number means, and what to do; `program` when a program's own bug makes it, too."""

    what: str
    cure: str
    program: bool = False


_RESET = "reset the GPU with nothing on it (nvidia-smi --gpu-reset -i INDEX), or reboot"
_CARD = "drain the machine and run NVIDIA's field diagnostic (dcgmi diag -r 3)"
MEANINGS = {
    13: Meaning("a kernel's exception", "look at what ran; compute-sanitizer finds it", program=True),
    31: Meaning("a memory page fault", "look at what ran; compute-sanitizer finds it", program=True),
    43: Meaning("a stopped channel", "look at what ran", program=True),
    45: Meaning("a program ended in the middle", "look at what ran", program=True),
    48: Meaning("a double-bit ECC error", _RESET),
    62: Meaning("the GPU's microcontroller halted", _RESET),
    63: Meaning("a memory row is to be replaced", "reset the GPU when nothing runs", program=True),
    64: Meaning("a memory row could not be replaced", f"{_RESET}; {_CARD}"),
    74: Meaning("an NVLink error", f"{_RESET}; {_CARD}"),
    79: Meaning("the GPU fell off the bus", f"reboot; if it comes again, {_CARD}, and look at power, heat and seating"),
    94: Meaning("a contained memory error", "restart what ran", program=True),
    95: Meaning("an uncontained memory error", _RESET),
    119: Meaning("the GPU's GSP does not answer", f"{_RESET}; a newer driver helps often"),
    120: Meaning("the GPU's GSP failed", f"{_RESET}; a newer driver helps often"),
    154: Meaning("the GPU asks to be recovered", _RESET),
}


def judge(log: KernelLog, gpus: Gpus) -> Iterator[Finding]:
    """One finding for each kind of error and GPU. It blocks while that GPU is not well; else the machine has recovered,
    and it is a warning."""
    if not log.readable:
        yield fault("log-unreadable", "kernel log", "can not be read", "read it as root: dmesg | grep NVRM", "warn")
        return
    if log.hung:
        text = f"the kernel says that {', '.join(log.hung)} has not moved for minutes"
        yield fault("task-hung", "kernel log", text, "reboot", "block" if gpus.hung else "warn")
    for client, module in log.mismatches:
        text = f"a program with the libraries of {client} asked the kernel module {module}"
        cure = f"give that container or guest the libraries of {module} (vGPU: a guest driver of the host's release)"
        yield fault("api-mismatch", "kernel log", text, cure, "block" if gpus.error else "warn")
    kinds: dict[tuple[int, str], list[Xid]] = {}
    for each in log.xids:
        kinds.setdefault((each.number, each.address), []).append(each)
    for (number, address), found in kinds.items():
        meaning = MEANINGS.get(number, Meaning("see NVIDIA's list of Xid errors", _RESET, program=True))
        times = f", {len(found)} times" if len(found) > 1 else ""
        text = f"Xid {number}, {meaning.what}{times}: {found[-1].text}"
        serious = not meaning.program and not _well(address, gpus)
        yield fault("xid", f"GPU at {address}", text, meaning.cure, "block" if serious else "warn")
    if not (log.xids or log.mismatches or log.hung):
        yield Finding("ok", "kernel log", "no error of the driver")


def _well(address: str, gpus: Gpus) -> bool:
    return any(same_address(each.address, address) and not (each.problem or each.uncorrected) for each in gpus.gpus)
