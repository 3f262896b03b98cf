"""What a run in an image knows of it, and what the record of its build adds."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from dflash.pipeline.keys import HOME
from dflash.pipeline.provenance.image import VARIABLE, image, with_build

BASE, DIGEST = f"sha256:{'b' * 64}", f"sha256:{'d' * 64}"
STAMP = f"python 3.12.3\nlock {'1' * 64}\nspec {'2' * 64}\nbase {BASE}\nplace /opt/env\n"
INSIDE = {"lock": "1" * 64, "spec": "2" * 64, "base": BASE}


def test_an_image_tells_its_base_and_whoever_started_it_its_digest(tmp_path: Path):
    assert image(tmp_path, tmp_path, {}) is None
    (tmp_path / "dflash-stamp").write_text(STAMP)
    assert image(tmp_path, tmp_path, {}) == INSIDE
    assert image(tmp_path, tmp_path, {VARIABLE: f"registry.example/dflash@{DIGEST}"}) == INSIDE | {"digest": DIGEST}
    assert image(tmp_path, tmp_path, {VARIABLE: "registry.example/dflash:latest"}) == INSIDE
    assert image(tmp_path, Path("/opt/env"), {}) is None


def test_commit_and_builder_are_those_of_the_build_that_made_this_digest(tmp_path: Path):
    known = INSIDE | {"digest": DIGEST}
    tools = {"docker": "28.5.2", "buildx": "0.29.1", "buildkit": "v0.25.0", "uv": "0.13.9"}
    assert with_build(None, tmp_path) is None
    assert with_build(INSIDE, tmp_path) == INSIDE
    assert with_build(known, tmp_path) == known
    for digest, commit in ((DIGEST, "c" * 40), (BASE, "e" * 40)):
        folder = tmp_path / "build" / "train-cu130" / digest.removeprefix("sha256:")
        folder.mkdir(parents=True)
        told = {"digest": digest, "commit": commit, "base": {"digest": BASE}, "tools": tools}
        (folder / "record.json").write_text(json.dumps(told))
    assert with_build(known, tmp_path) == known | {"commit": "c" * 40, "builder": tools}
    (tmp_path / "build" / "train-cu130" / DIGEST.removeprefix("sha256:") / "record.json").write_text("{")
    assert with_build(known, tmp_path) == known


def test_an_environment_s_stamp_has_the_base_that_its_build_was_given(tmp_path: Path):
    """The script itself, whose uv and folders are stood in for."""
    script = (HOME / "docker" / "environment.sh").read_text()
    for place in ("env/bin", "env/lib", "run/tools", "run/environment"):
        (tmp_path / place).mkdir(parents=True)
    for name in ("requirements.lock", "env.yaml"):
        (tmp_path / "run" / "environment" / name).write_text(name)
    uv, python = tmp_path / "run" / "tools" / "uv", tmp_path / "env" / "bin" / "python"
    uv.write_text("#!/bin/sh\n")
    python.write_text("#!/bin/sh\necho python 3.12.3\n")
    for program in (uv, python):
        program.chmod(0o755)
    script = script.replace("/opt/env", str(tmp_path / "env")).replace("/run/", f"{tmp_path}/run/")
    environ = {**os.environ, "PYTHON": "3.12", "BASE_DIGEST": BASE}
    subprocess.run(["sh", "-c", script], env=environ, check=True)
    found = image(tmp_path / "env", tmp_path / "env", {})
    assert found is not None
    assert found["base"] == BASE
