"""`./inv train --host` in a container of a real image: built from the lock, pushed, by its digest made a container by
`./inv provision`; there, the image's own environment is what trains, and nothing is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dflash.environments.lock import read_lock
from dflash.environments.wheelhouse import fill
from dflash.pipeline.keys import HOME
from tests.images.lab import base_tar
from tests.lab.buildkit import Engine, buildkit
from tests.lab.registry import registry
from tests.pipeline.trainings import tiny

pytestmark = pytest.mark.nightly

BASE, NAME = "dflash-lab:compilers", "dflash-trainer"
CHAIN, ROOT = f"docker:{NAME}", "/home/dflash/.dflash"
MAIN = """
import sys
from pathlib import Path
from dflash import cli
cli.HOME = Path(sys.argv[1])
cli.main(sys.argv[2:])
"""
"""`./inv` with an inventory of its own."""
PIPELINE = tiny(20)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with buildkit() as running:
        running.run("import", str(base_tar(compilers=True)), BASE)
        yield running


@pytest.fixture
def address() -> Iterator[str]:
    with registry() as running:
        yield running


@dataclass
class Caller:
    """Somebody who has an engine, and a folder with an inventory and a pipeline."""

    folder: Path
    engine: Engine

    def inv(self, *words: str, home: Path = HOME) -> str:
        """What the verb prints, which must succeed."""
        command = [sys.executable, "-B", "-c", MAIN, str(home), *words]
        environ = {**os.environ, **self.engine.environment, "PYTHONPATH": str(HOME)}
        done = subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def record(self) -> dict[str, Any]:
        """That of the newest run."""
        newest = max((self.folder / "runs").iterdir())
        return dict(json.loads((newest / "record.json").read_text()))


def test_an_image_by_its_digest_becomes_a_container_whose_own_environment_trains(
    engine: Engine, address: str, tmp_path: Path
):
    wheels = Path(os.environ.get("DFLASH_TEST_WHEELS", tmp_path / "wheels"))
    if not wheels.exists():
        fill(HOME / "envs" / "local", wheels)
    caller = Caller(tmp_path, engine)
    words = ("--base", BASE, "--wheels", str(wheels), "--push", f"{address}/local", "--root", str(tmp_path))
    image = f"{address}/local@{caller.inv('build', 'local', *words).strip()}"
    engine.run("image", "rm", "--force", engine.run("images", "--quiet", "dflash/local").stdout.split()[0])

    machine = {"container": {"image": image, "shm_gib": 1}}
    (tmp_path / "hosts.yaml").write_text(json.dumps({"trainer": {"chain": CHAIN, "machine": machine}}))
    caller.inv("provision", "--host", "trainer", home=tmp_path)
    assert engine.run("inspect", "--format", "{{.Config.Image}} {{.State.Status}}", NAME).stdout == f"{image} running\n"
    again = json.loads(caller.inv("provision", "--host", "trainer", "--json", home=tmp_path))
    assert again["hosts"][0]["changes"] == 0

    (tmp_path / "tiny.yaml").write_text(PIPELINE)
    words = [f"{number} and {number} is {2 * number}, which is even, as any sum of two equals" for number in range(64)]
    talk = [[{"role": "user", "content": "And?"}, {"role": "assistant", "content": text}] for text in words]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in talk))
    before = engine.run("diff", NAME).stdout
    caller.inv("train", "--pipeline", "tiny.yaml", "--host", CHAIN, "--root", str(tmp_path))
    record = caller.record()
    assert record["status"] == "ok"
    assert record["lock_id"] == read_lock(HOME / "envs" / "local" / "requirements.lock").id
    made = record["provenance"]["environment"]["image"]
    (built,) = (tmp_path / "build" / "local").glob("*/record.json")
    told = json.loads(built.read_text())
    assert (made["digest"], made["base"], made["commit"]) == (told["digest"], told["base"]["digest"], told["commit"])
    assert made["digest"] == image.partition("@")[2]
    assert made["builder"]["buildkit"] == told["tools"]["buildkit"]
    written = {line[2:] for line in {*engine.run("diff", NAME).stdout.splitlines()} - {*before.splitlines()}}
    assert f"{ROOT}/pycache/opt/env" in written, "no step compiles torch's Python again"
    assert not [path for path in written if path.startswith(("/opt/", f"{ROOT}/envs", f"{ROOT}/tools"))]
