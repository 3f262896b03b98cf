"""Real trainings, small, done again: bit for bit the same, or with one thing changed, which is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dflash.environments.wheelhouse import fill
from dflash.pipeline.comparing import compare
from dflash.pipeline.judging import made_by
from dflash.pipeline.keys import HOME
from dflash.pipeline.provenance.variables import kept
from dflash.pipeline.record import load_record
from dflash.pipeline.verdict import judged
from tests.conftest import MARK
from tests.hosts.conftest import lab_sshd  # noqa: F401 - a fixture
from tests.images.lab import base_tar
from tests.lab.lxc import container
from tests.lab.sshd import Sshd
from tests.pipeline.trainings import tiny

PIPELINE = tiny(30, is_whole=False)
CONTAINER = "734"


TAKEN = re.sub(r"with: \{layers.*?\}", "with: {folder: model}", PIPELINE, flags=re.DOTALL)
"""The same with a target that is there already."""


@dataclass
class Desk:
    """A folder with a pipeline, its data, and a run that has ended. Its shell, as another host, has no variables that
    change how something is computed."""

    folder: Path
    run: str = ""

    def inv(self, *words: str, **environ: str) -> tuple[int, dict[str, Any], str]:
        """Exit status, the document on standard output, and what was said."""
        command = [sys.executable, "-B", "-m", "dflash", *words, "--root", str(self.folder), "--json"]
        around = {name: value for name, value in os.environ.items() if name == MARK or name not in kept(os.environ)}
        known = {**around, "PYTHONPATH": str(HOME), **environ}
        done = subprocess.run(command, cwd=self.folder, env=known, capture_output=True, text=True, check=False)
        print(done.stdout[-3000:], done.stderr[-3000:])
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr

    def replay(self, *words: str, **environ: str) -> tuple[int, dict[str, Any], str]:
        return self.inv("replay", self.run, *words, **environ)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "tiny.yaml").write_text(PIPELINE)
    (folder / "taken.yaml").write_text(TAKEN)
    words = [f"{number} and {number} is {2 * number}, which is even, as any sum of two equals" for number in range(64)]
    talk = [[{"role": "user", "content": "And?"}, {"role": "assistant", "content": text}] for text in words]
    (folder / "talk.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in talk))
    made = Desk(folder)
    code, record, said = made.inv("train", "--pipeline", "tiny.yaml")
    assert code == 0, said
    made.run = record["id"]
    return made


def causes(told: dict[str, Any]) -> list[str]:
    return [each["field"] for each in told["differences"]]


@pytest.mark.nightly
def test_a_real_training_is_done_again_to_the_last_bit(desk: Desk):
    code, told, said = desk.replay()
    assert (code, told["differences"]) == (0, []), said
    assert told["verdict"]["kind"] == "bit-identical"
    assert told["verdict"]["rows"] == 30
    record = json.loads((desk.folder / "runs" / desk.run / "record.json").read_text())
    made = record["provenance"]
    assert any(name.startswith("libtorch_cpu") for name in made["libraries"]["train"])
    assert any("gomp" in name for name in made["libraries"]["train"])
    assert made["seeds"]["flags"]["train"]["deterministic_algorithms"] is False
    assert made["artifacts"]["train"]["draft/model.safetensors"]["tensors"]


@pytest.fixture(scope="module")
def taken(desk: Desk) -> str:
    """A run with a target that is there already, which is brought to where it is done again."""
    target = next(step for step in load_record(desk.folder, desk.run)["steps"] if step["kind"] == "target")
    shutil.copytree(desk.folder / target["folder"] / "model", desk.folder / "model")
    code, record, said = desk.inv("train", "--pipeline", "taken.yaml")
    assert code == 0, said
    run: str = record["id"]
    return run


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an environment is made of where there is no network."""
    known = os.environ.get("DFLASH_TEST_WHEELS")
    folder = Path(known) if known else tmp_path_factory.mktemp("wheelhouse") / "wheels"
    if not folder.exists():
        fill(HOME / "envs" / "local", folder)
    return folder


def is_the_same_there(desk: Desk, run: str, chain: str, wheels: Path) -> None:
    # The Python there is another patch release, whose standard library a text is made of that this run does not read.
    there = ("--host", chain, "--wheels", str(wheels), "--accept", "data.data.corpus")
    code, told, said = desk.inv("replay", run, *there)
    assert code == 0, said
    assert told["verdict"]["kind"] == "bit-identical"
    assert told["verdict"]["rows"] == 30
    assert {*causes(told)} <= {"data.data.corpus", "environment.packages.pip", "environment.python"}


@pytest.mark.nightly
def test_it_is_the_same_to_the_last_bit_on_a_host_behind_sshd_in_an_environment_made_there(
    desk: Desk,
    taken: str,
    wheels: Path,
    lab_sshd: Sshd,  # noqa: F811
):
    is_the_same_there(desk, taken, "ssh:lab-bash", wheels)


@pytest.mark.nightly
def test_it_is_the_same_to_the_last_bit_in_a_container_on_that_host_too(
    desk: Desk,
    taken: str,
    wheels: Path,
    lab_sshd: Sshd,  # noqa: F811
):
    with container(CONTAINER, tar=base_tar(compilers=True)):
        is_the_same_there(desk, taken, f"ssh:lab/lxc:{CONTAINER}", wheels)


@pytest.mark.nightly
def test_a_row_of_data_that_was_changed_is_named_before_and_is_the_cause_after(desk: Desk):
    file = desk.folder / "talk.jsonl"
    before = file.read_text()
    lines = before.splitlines(keepends=True)
    file.write_text("".join([*lines[:6], lines[6].replace("6 and 6", "6 plus 6"), *lines[7:]]))
    try:
        code, _, said = desk.replay()
        assert code == 3
        assert "data.data.talk.jsonl: step data reads other data: talk.jsonl, from line 7 on" in said
        code, told, said = desk.replay("--accept", "data")
    finally:
        file.write_text(before)
    assert code == 11, said
    assert causes(told)[0] == told["verdict"]["field"] == "data.data.talk.jsonl"
    assert told["verdict"]["kind"] == "diverged"
    assert told["verdict"]["step"] is not None


@pytest.mark.nightly
def test_a_library_with_other_bytes_is_named_though_it_computes_the_same(desk: Desk, tmp_path: Path):
    torch = find_spec("torch")
    assert torch is not None
    other = tmp_path / "libgomp.so.1"
    shutil.copy(Path(str(torch.origin)).parent / "lib" / other.name, other)
    with other.open("ab") as file:
        file.write(b"\0")
    code, told, said = desk.replay(LD_PRELOAD=str(other))
    assert code == 0, said
    libraries = [field for field in causes(told) if field.startswith("libraries.")]
    assert causes(told)[0] in libraries
    assert "libraries.train.libgomp.so.1" in libraries
    assert {field.split(".", 2)[2] for field in libraries} == {"libgomp.so.1"}
    assert "variables.runner.LD_PRELOAD" in causes(told)


@pytest.mark.nightly
def test_a_package_of_another_version_keeps_a_replay_from_starting(desk: Desk, tmp_path: Path):
    place = tmp_path / "transformers-9.9.9.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 9.9.9\n")
    code, _, said = desk.replay("--plan", PYTHONPATH=f"{tmp_path}{os.pathsep}{HOME}")
    assert code == 3
    assert "environment.packages.transformers: it computes: numbers and compiled graphs can differ" in said


@pytest.mark.nightly
def test_a_changed_flag_of_torch_is_named(desk: Desk):
    code, told, said = desk.replay(TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1")
    assert code == 0, said
    flags = [field for field in causes(told) if field.startswith("seeds.flags.")]
    assert "seeds.flags.train.float32_matmul_precision" in flags
    assert causes(told)[0] in flags


@pytest.mark.nightly
def test_a_run_with_another_seed_diverges_from_the_first_step_on_because_of_it(desk: Desk):
    code, record, said = desk.inv("train", "--pipeline", "tiny.yaml", "--set", "train.seed=1")
    assert code == 0, said
    first = load_record(desk.folder, desk.run)
    found = compare(first, record)
    verdict = judged(made_by(desk.folder, first), made_by(desk.folder, record), found)
    assert [each.field for each in found if each.severity == "blocking"] == ["seeds.steps.train.seed"]
    assert (verdict.kind, verdict.step, verdict.field) == ("diverged", 1, "seeds.steps.train.seed")
