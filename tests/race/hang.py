"""The hang on GPUs: more trainers than devices, as threads of one process, compile backward passes for good.

    PYTHONPATH=. TORCHINDUCTOR_CACHE_DIR=/a/fresh/folder python tests/race/hang.py none|gate [--seconds 240]

The first `backward()` of a compiled function compiles its backward graph, on autograd's thread of that device, for
which it wants torch's compile lock. A second trainer that holds the lock, compiling flex_attention, calls autograd for
the same device and waits for that thread, which waits for the lock. So two trainers of one device are enough: three on
two GPUs, or on one. Nothing is raised and nothing ends. With the gate a turn holds forward and backward, and after it
nothing compiles.

Prints one line of JSON; its outcome is "ok" (status 0), "failed" (1) or "hang" (3, with the stacks of all threads on
standard error). Without a GPU: "no GPU", status 2.
"""

from __future__ import annotations

import argparse
import contextvars
import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from dflash.compilation.gate import CompileGate, tracing_flag_is_up

LENGTH, WINDOW, HEADS, WIDTH = 2048, 256, 4, 64
UNGATED_STEPS, GATED_STEPS = 3, 200


def window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) & (query - key < WINDOW)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask) -> Tensor:
    return flex_attention(query, key, value, block_mask=mask)


class Trainers:
    """Threads that train on `devices` in turn, and how far each has come."""

    def __init__(self, mode: str, threads: int, devices: list[torch.device]) -> None:
        self.gate = CompileGate() if mode == "gate" else None
        self.devices = [devices[number % len(devices)] for number in range(threads)]
        self.steps = [0] * threads
        self.doing = ["nothing yet"] * threads
        self.failures: list[BaseException] = []
        self.everyone = threading.Barrier(threads, action=self.seal)
        self.begun, self.warm_s = time.monotonic(), 0.0
        compiler = self.gate.compile if self.gate else plainly
        self.attend = compiler(attend, name="attention")

    def seal(self) -> None:
        assert self.gate is not None
        self.gate.seal()
        self.warm_s = round(time.monotonic() - self.begun, 1)

    def run(self) -> None:
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(self.work, number), daemon=True)
            for number in range(len(self.devices))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def work(self, number: int) -> None:
        device = self.devices[number]
        try:
            torch.cuda.set_device(device)
            tensors = [
                torch.randn(1, HEADS, LENGTH, WIDTH, device=device, dtype=torch.bfloat16, requires_grad=True)
                for _ in range(3)
            ]
            if self.gate:
                with self.gate.turn():
                    mask = self.mask(number)
                    self.step(number, tensors, mask)
                self.doing[number] = "waiting for the others' turns"
                self.everyone.wait()
            else:
                mask = self.mask(number)
            while self.steps[number] < (GATED_STEPS if self.gate else UNGATED_STEPS):
                self.step(number, tensors, mask)
            self.doing[number] = "done"
        except threading.BrokenBarrierError:
            self.doing[number] = "gave up: another has failed"
        except BaseException as failure:
            self.failures.append(failure)
            self.doing[number] = f"failed: {type(failure).__name__}"
            self.everyone.abort()

    def mask(self, number: int) -> BlockMask:
        self.doing[number] = "mask"
        return create_block_mask(window, None, None, LENGTH, LENGTH, device=str(self.devices[number]))

    def step(self, number: int, tensors: list[Tensor], mask: BlockMask) -> None:
        self.doing[number] = "forward"
        output = self.attend(*tensors, mask)
        self.doing[number] = "backward"
        output.float().square().mean().backward()
        torch.cuda.synchronize(self.devices[number])
        self.steps[number] += 1

    def report(self, outcome: str) -> dict[str, Any]:
        failed = self.failures[0] if self.failures else None
        return {
            "outcome": outcome,
            "torch": torch.__version__,
            "mode": "gate" if self.gate else "none",
            "devices": [str(device) for device in self.devices],
            "steps": self.steps,
            "doing": self.doing,
            "error": f"{type(failed).__name__}: {str(failed).strip().partition(chr(10))[0]}" if failed else "",
            "flag_up": tracing_flag_is_up(),
            "graphs": int(counters["stats"]["unique_graphs"]),
            "warm_s": self.warm_s,
            "seconds": round(time.monotonic() - self.begun, 1),
        }


def plainly(function: Callable[..., Any], *, name: str) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def watch(trainers: Trainers, seconds: float) -> NoReturn:
    """After so many seconds show where each thread is, autograd's own too, and end the process as it stands."""
    time.sleep(seconds)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    end(trainers, "hang", 3)


def end(trainers: Trainers, outcome: str, status: int) -> NoReturn:
    print(json.dumps(trainers.report(outcome)), flush=True)
    sys.stderr.flush()
    os._exit(status)  # threads that hang, and compile workers, would hold an ordinary exit up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("none", "gate"))
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=240.0, help="after which it counts as hung")
    wanted = parser.parse_args()
    if not torch.cuda.is_available():
        print(json.dumps({"outcome": "no GPU", "torch": torch.__version__, "mode": wanted.mode}))
        sys.exit(2)
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    for device in devices[: wanted.threads]:
        torch.zeros(1, device=device)  # so that the time is not that of making CUDA's contexts
    trainers = Trainers(wanted.mode, wanted.threads, devices)
    # In case a thread hangs with Python's own lock held, when `watch` could not run either.
    faulthandler.dump_traceback_later(wanted.seconds + 15, exit=True)
    threading.Thread(target=watch, args=(trainers, wanted.seconds), daemon=True).start()
    trainers.run()
    if trainers.failures:
        traceback.print_exception(trainers.failures[0])
        end(trainers, "failed", 1)
    end(trainers, "ok", 0)


if __name__ == "__main__":
    main()
