"""README.md is true: its commands run, its snippets run, its paths are there, its exit statuses are the code's.

A block is run when `<!-- run -->` stands above it. `./inv` is then a script that does not make .venv, and that keeps
what it makes out of this folder. Blocks that train are planned instead; `<!-- run nightly -->` needs a whole run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dflash import errors
from dflash.pipeline.keys import HOME
from tests.test_bad_input import ALONE, PIPELINE

README = (HOME / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^(?:<!-- (run(?: nightly)?) -->\n)?```(sh|python)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SHIM = """#!/bin/sh
case "$1" in
    train) shift; set -- {train} "$@" --root . ;;
    plan | show | runs | report | graph | replay) set -- "$@" --root . ;;
esac
exec "{python}" -B -m dflash "$@"
"""


def blocks(mark: str, language: str) -> list[str]:
    return [text for each, kind, text in BLOCKS if (each, kind) == (mark, language)]


def project(folder: Path, train: str) -> Path:
    """A folder whose `./inv` is this project's, with `train` in place of the verb of that name."""
    shim = folder / "inv"
    shim.write_text(SHIM.format(python=sys.executable, train=train))
    shim.chmod(0o755)
    return folder


def run(folder: Path, *command: str) -> str:
    """What a command prints; it ends well."""
    environ = {**os.environ, "PYTHONPATH": str(HOME), "HF_MODULES_CACHE": str(folder / "modules")}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which a run has been."""
    folder = project(tmp_path_factory.mktemp("readme"), "train")
    (folder / "pipeline.yaml").write_text(ALONE)
    run(folder, "./inv", "train", "--pipeline", str(folder / "pipeline.yaml"))
    return folder


@pytest.mark.parametrize("block", blocks("run", "sh"), ids=lambda block: block.splitlines()[0])
def test_its_commands_run(one_run: Path, block: str):
    said = run(one_run, "sh", "-ec", block)
    if "./inv exec" in block:
        (line,) = re.findall(r"The second prints `(.*?)`\.", README)
        assert said.endswith(f"{line}\n")


@pytest.mark.parametrize("block", [each for each in blocks("", "sh") if "./inv train" in each])
def test_its_trainings_can_be_planned(tmp_path: Path, block: str):
    said = run(project(tmp_path, "plan"), "sh", "-ec", block)
    assert said.count("No step needs a GPU.") == block.count("./inv train")


def test_its_gate_runs_and_prints_what_it_says(tmp_path: Path):
    (snippet,) = blocks("run", "python")
    said = run(tmp_path, sys.executable, "-B", "-c", snippet)
    before, after = re.search(r"^('layer' would need .*?)…(.*)$", README, re.MULTILINE).groups()
    assert said.startswith(before)
    assert said.strip().endswith(after)


@pytest.mark.nightly
def test_its_use_of_an_exported_drafter_runs(tmp_path: Path):
    project(tmp_path, "train")
    (tmp_path / "pipeline.yaml").write_text(f"{PIPELINE}  - {{name: export, uses: export, needs: [train]}}\n")
    run(tmp_path, "./inv", "train", "--pipeline", str(tmp_path / "pipeline.yaml"))
    (snippet,) = blocks("run nightly", "python")
    said = run(tmp_path, sys.executable, "-B", "-c", snippet)
    assert re.search(r"^6\d tokens in \d+ passes of the target$", said, re.MULTILINE)


def test_every_path_that_it_names_is_there():
    table = README.partition("| Where | What |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)
    assert len(named) >= 14
    named += [each for each in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in each]
    for path in named:
        assert (HOME / path).exists(), path
        assert (HOME / path).is_dir() == path.endswith("/"), path


def test_every_room_is_in_its_table():
    rooms = [path.name for path in (HOME / "dflash").iterdir() if (path / "__init__.py").exists()]
    for room in rooms:
        assert f"| `dflash/{room}/` |" in README


def test_its_exit_statuses_are_those_of_the_errors():
    table = README.partition("| Status | |")[2].partition("\n\n")[0]
    told = {int(status) for status in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.DFlashError)]
    assert told == {0, *(kind.exit_code for kind in kinds)}
    for cell, status in re.findall(r"^\| .* \| `+(error: .*?)`+ \| (\d) \|$", README, re.MULTILINE):
        assert int(status) in told, cell


@pytest.mark.parametrize("line", re.findall(r"`(error: --set .*?)`", README))
def test_what_it_says_of_a_wrong_setting_is_what_is_said(line: str):
    setting = line.removeprefix("error: --set ").partition(": ")[0]
    command = [sys.executable, "-B", "-m", "dflash", "plan", "--set", setting]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, f"{line}\n")


def test_nothing_in_it_is_of_one_machine():
    for word in ("/tmp/", "/work/main", "/home/", "/root/"):
        assert word not in README
