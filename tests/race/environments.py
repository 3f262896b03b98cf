"""Environments with torch in them, and starts of `start.py` in each: a fresh process, a compile cache of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.environments.remote import on_host
from dflash.environments.spec import read_spec
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host

REPOSITORY = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("start.py")
LONGEST = 400.0
"""Seconds after which a start counts as hung. On two cores that do nothing else it takes 15 to 40."""

Result = dict[str, Any]


@dataclass(frozen=True)
class Environment:
    """An environment of `envs/`: its name, its torch, the Python in it, and a folder for what starts leave."""

    name: str
    torch: str
    python: Path
    folder: Path

    @property
    def dies_of_the_flag(self) -> bool:
        """From 2.13 two flags of torch mask each other, and from 2.14 the flag is a thread's own."""
        return self.torch.startswith("2.11.")

    def start(self, mode: str, cache: Path, *options: str) -> Result:
        """What one start printed, by `start.py`'s own names; the outcome of one that hung or died is `failed` too."""
        settings = {
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            # The kernels are tiny: what more threads of OpenMP add is waiting for one another.
            "OMP_NUM_THREADS": "1",
        }
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [self.python, PROGRAM, mode, *options],
                env=os.environ | settings,
                stdout=output,
                stderr=said,
                start_new_session=True,
            )
            try:
                status = process.wait(LONGEST)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):  # compile workers may outlive a start for a moment
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            said.seek(0)
            lines, words = output.read().splitlines(), said.read()
        if status is None:
            return {"mode": mode, "outcome": "failed", "kind": "hang", "error": f"no end in {LONGEST:g} s"}
        if status or not lines:
            return {"mode": mode, "outcome": "failed", "kind": "died", "error": f"status {status}: {words[-2000:]}"}
        return {**json.loads(lines[-1]), "said": words[-4000:]}

    def starts(self, mode: str, count: int, *options: str, objects: Path | None = None) -> list[Result]:
        """`count` starts, one after the other, each with an empty cache, or with nothing but the `objects` in it."""
        results = []
        for _ in range(count):
            with tempfile.TemporaryDirectory(dir=self.folder) as cache:
                if objects:
                    shutil.copytree(objects, cache, dirs_exist_ok=True)
                results.append(self.start(mode, Path(cache), *options))
        return results

    def warm(self, mode: str = "gate") -> Path:
        """A cache that a start of this mode left. The gate has one of torch's settings otherwise, which is part of
        AOTAutograd's key: without the gate its cache is not a warm one, nor the other way round."""
        cache = self.folder / f"warm-{mode}"
        if not cache.exists():
            result = self.start(mode, cache)
            if result["outcome"] != "ok":
                raise RuntimeError(f"the start that was to fill a cache failed: {result}")
        return cache

    def objects(self) -> Path:
        """What the C++ compiler made in a gated start, and nothing else of its cache. With this in it a cache is as
        cold as an empty one for all that is written in Python (Dynamo, AOTAutograd, inductor), which is what sets the
        flag: no graph is found. Only the compiler, most of a start's time, has nothing to do."""
        place = self.folder / "objects"
        if not place.exists():
            shutil.copytree(self.warm(), place, ignore=_all_but_objects)
        return place


def _all_but_objects(folder: str, names: list[str]) -> list[str]:
    """Inductor puts what a C++ compiler reads and makes in folders named by two letters of a digest."""
    inside = len(Path(folder).name) == 2
    return [name for name in names if not inside and len(name) != 2]


def failures(results: Sequence[Result]) -> list[Result]:
    return [each for each in results if each["outcome"] != "ok"]


def rate(environment: Environment, what: str, results: Sequence[Result]) -> str:
    """One line for a person: how many failed of how many and of what, what ran eagerly, and whether the flag stuck."""
    failed = failures(results)
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(each["kind"] for each in failed).items())
    eager = sum(each.get("eager_calls", 0) for each in results)
    stuck = sum(each.get("flag_up", False) for each in results)
    seconds = sum(each.get("seconds", LONGEST) for each in results) / len(results)
    return (
        f"{environment.name} (torch {environment.torch}) {what}: {len(failed)} of {len(results)} failed"
        f"{f' ({kinds})' if kinds else ''}, {eager} silent eager calls, flag stuck in {stuck}, {seconds:.0f} s a start"
    )


@contextmanager
def environment_of(name: str) -> Iterator[Environment]:
    """The environment `envs/<name>`, made anew from its lock and removed at the end; for `local` that of this Python.
    The wheels come from uv's cache or its index; beside them it needs up to 10 GB."""
    declared = REPOSITORY / "envs" / name
    torch = read_spec(declared / "env.yaml").torch
    # Not in /tmp, which may be memory.
    with tempfile.TemporaryDirectory(prefix="dflash-race-", dir=Path.home()) as place:
        folder = Path(place) / "starts"
        folder.mkdir()
        if name == "local":
            yield Environment(name, torch, Path(sys.executable), folder)
            return
        with on_host(Host("here", parse_chain("local"), root=place)) as environments:
            environments.create(declared)
            (made,) = environments.listed(name)
        yield Environment(name, torch, Path(made["path"]) / "bin" / "python", folder)
