"""`./inv train --host`, for real: through a real sshd into a real container that has nothing but Python and a compiler,
with the connection killed twice, the compile cache removed once, a stop, and a second run meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from dflash.environments import wheelhouse
from dflash.pipeline.events import read_jsonl
from dflash.pipeline.keys import HOME
from tests.hosts.conftest import lab_sshd  # noqa: F401 - a fixture
from tests.images.lab import base_tar
from tests.lab.lxc import container
from tests.lab.service import wait_until
from tests.lab.sshd import Sshd
from tests.pipeline.trainings import tiny

NAME = "733"
CHAIN = f"ssh:lab/lxc:{NAME}"
INSIDE = Path(f"/var/lib/lxc/{NAME}/rootfs/root/.dflash")
"""The root there, seen from outside."""
PIPELINE = tiny(2000, checkpoint_every=50, compiles=True)
ORCHESTRATION_S = 10.0
"""From typing it to the start of the runner there, with nothing changed."""


@dataclass
class Caller:
    """Somebody at a desk, with a folder of their own."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-B", "-m", "dflash", *words, "--root", str(self.folder)]
        environ = {**os.environ, "PYTHONPATH": str(HOME)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.started.append(subprocess.Popen(command, cwd=self.folder, env=environ, **pipes))
        return self.started[-1]

    def train(self, *words: str) -> subprocess.Popen[str]:
        return self.start("train", "--pipeline", "tiny.yaml", "--host", CHAIN, *words)

    def inv(self, *words: str) -> tuple[int, str]:
        return ended(self.start(*words))

    @property
    def run(self) -> str:
        """The newest run."""
        return max(path.name for path in (self.folder / "runs").iterdir())

    def record(self, run: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "runs" / (run or self.run) / "record.json").read_text())
        return found

    def statuses(self) -> dict[str, str]:
        return {step["name"]: step["status"] for step in self.record()["steps"]}


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, errors = process.communicate(timeout=400)
    print(out, errors)
    return process.returncode, out + errors


@pytest.fixture(scope="module")
def desk(lab_sshd: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:  # noqa: F811
    folder = tmp_path_factory.mktemp("desk")
    (folder / "tiny.yaml").write_text(PIPELINE)
    words = [f"{number} and {number} is {2 * number}, which is even, as any sum of two equals" for number in range(64)]
    talk = [[{"role": "user", "content": "And?"}, {"role": "assistant", "content": text}] for text in words]
    (folder / "talk.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in talk))
    # torch would compile a program for each set of vector instructions, to know that the compiler knows it.
    with container(NAME, tar=base_tar(compilers=True), variables={"TORCHINDUCTOR_VEC_ISA_OK": "1"}):
        caller = Caller(folder)
        try:
            yield caller
        finally:
            for process in caller.started:
                process.kill()
                process.communicate()


def events(run: str, step: str, kind: str = "progress") -> list[dict[str, Any]]:
    """What the run there has written about a step."""
    log = INSIDE / "runs" / run / "events.jsonl"
    return (
        [each for each in read_jsonl(log) if (each["event"], each.get("step")) == (kind, step)] if log.exists() else []
    )


def await_(ready: Callable[[], object], what: str, process: subprocess.Popen[str], seconds: float = 400.0) -> None:
    """Poll until `ready()`, as long as the process that makes it so runs."""

    def over() -> bool:
        assert process.poll() is None or ready(), ended(process)
        return bool(ready())

    wait_until(over, what, seconds)


def cut(server: Sshd) -> None:
    """Kill every connection that sshd serves."""
    sessions = psutil.Process(server.pid).children()
    assert sessions
    for session in sessions:
        session.kill()


def test_a_bare_container_is_trained_in_however_often_the_connection_breaks(
    desk: Caller,
    lab_sshd: Sshd,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    wheels = Path(os.environ.get("DFLASH_TEST_WHEELS", tmp_path / "wheels"))
    if not wheels.exists():
        # That they suffice is seen when the environment is made of them there.
        monkeypatch.setattr(wheelhouse, "prove", lambda *_: None)
        wheelhouse.fill(HOME / "envs" / "local", wheels)
    first = desk.train("--wheels", str(wheels))
    await_(lambda: (desk.folder / "runs").exists() and events(desk.run, "train"), "the training", first)
    run = desk.run
    code, said = desk.inv("train", "--pipeline", "tiny.yaml", "--host", CHAIN)
    assert code == 6
    assert re.search(rf"error: {CHAIN}: .*: run {run} of \S+@\S+ \(process \d+\) is at work there", said)
    for _ in range(2):
        seen = len(events(run, "train"))
        cut(lab_sshd)
        await_(lambda seen=seen: len(events(run, "train")) > seen + 1, "more training", first)
    assert ended(first)[0] == 0
    assert set(desk.statuses().values()) == {"ok"}
    home = desk.folder / "runs" / run
    assert (home / "export" / "model.safetensors").stat().st_size > 1000
    assert (home / "metrics.jsonl").read_text().count("\n") == 2000
    assert (home / "report.html").exists()
    assert desk.record()["lock_id"]
    assert desk.record()["commit"]

    begun = time.time()
    assert desk.inv("train", "--pipeline", "tiny.yaml", "--host", CHAIN)[0] == 0
    started = read_jsonl(desk.folder / "runs" / desk.run / "events.jsonl")[0]["time"]
    print(f"with nothing changed: {started - begun:.1f} s until the runner there begins")
    assert started - begun < ORCHESTRATION_S
    assert desk.statuses() == {
        "check": "ok",
        **dict.fromkeys(("target", "data", "prewarm", "train", "export"), "skipped"),
    }


def test_what_was_stopped_is_gone_on_with_and_a_cache_that_is_gone_comes_from_the_vault(desk: Caller):
    for cache in (INSIDE / "work" / "prewarm").iterdir():
        shutil.rmtree(cache)
    long = desk.train("--set", "train.steps=3000")
    before = desk.run
    await_(lambda: desk.run != before and events(desk.run, "train"), "the training", long)
    run = desk.run
    long.send_signal(signal.SIGINT)
    code, said = ended(long)
    assert code == 130
    assert f"goes on with the run; ./inv follow {run} looks on again" in said
    assert at_work()
    follower = desk.start("follow", run)
    seen = len(events(run, "train"))
    await_(lambda: len(events(run, "train")) > seen, "more training", follower)
    assert desk.inv("stop", run)[0] == 0
    assert ended(follower)[0] == 143
    assert desk.record()["status"] == "interrupted"
    assert desk.statuses()["prewarm"] == "ok"
    assert at_work() == []
    last = events(run, "train")[-1]["done"]
    code, said = desk.inv("resume", run)
    assert code == 0
    resumed = re.search(r"resumed at step (\d+) of 3000", said)
    assert resumed
    assert int(resumed[1]) >= last - 50
    assert desk.statuses()["train"] == "ok"
    assert desk.record(run)["status"] == "interrupted"


def at_work() -> list[psutil.Process]:
    """Processes in the container that run with its environment. Paths do not tell whose container it is."""
    first = subprocess.run(["lxc-info", "-n", NAME, "-pH"], check=True, capture_output=True, text=True).stdout.strip()
    inside = os.readlink(f"/proc/{first}/ns/pid")
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if os.readlink(f"/proc/{process.pid}/ns/pid") == inside and any("/.dflash/envs/" in word for word in words):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
