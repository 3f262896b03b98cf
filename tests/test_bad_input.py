"""What a person gets wrong, typed as they would type it: one line that says what, where and what to do, a true exit
status, and no traceback. Real steps and a real, tiny target; the steps that only take time are left out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dflash.pipeline.keys import HOME
from tests.mounts import small_file_system, unwritable
from tests.pipeline.lab import none_left

PIPELINE = """\
name: tiny
steps:
  - name: target
    uses: target
    with: {layers: 6, hidden: 32, intermediate: 64, heads: 2, kv_heads: 1, window: 32, rows: 2, steps: 4,
           checkpoint_every: 2, corpus_bytes: 600000, threads: 1}
  - name: data
    uses: data
    needs: [target]
    with: {prompts: 8, response_tokens: 24, heldout: 2, batch: 8, buckets: [96], block: 4, corpus_bytes: 600000}
  - name: prewarm
    uses: prewarm
    needs: [target, data]
    with: {for_step: train}
  - name: train
    uses: train
    needs: [target, data, prewarm]
    with:
      draft: {layers: 1, features: 2, block: 4, mask_token_id: 260}
      rows: 1
      anchors: 8
      gamma: 2.0
      steps: 120
      checkpoint_every: 5
      compile: false
"""
ALONE = "name: alone\nsteps:\n" + PIPELINE.partition("steps:\n")[2].partition("  - name: data")[0]


def inv(*words: str, root: Path | None = None, cwd: Path = HOME, program: Sequence[str] = ("-m", "dflash")):
    """`./inv WORDS`, without the making of .venv. Its output, as text."""
    place = () if root is None else ("--root", str(root))
    environ = {**os.environ, "PYTHONPATH": str(cwd), "DFLASH_TEST_ROOT": str(root)}
    command = [sys.executable, "-B", *program, *words, *place]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=100)


def refused(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The one line of a verb that was refused with `status`."""
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == status, said
    assert "Traceback" not in said
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said
    assert done.stderr.splitlines()[-1] == errors[0]
    return errors[0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root whose target is made already, with the pipeline in tiny.yaml."""
    root = tmp_path_factory.mktemp("tiny")
    (root / "tiny.yaml").write_text(PIPELINE)
    (root / "alone.yaml").write_text(ALONE)
    made = inv("train", "--pipeline", str(root / "alone.yaml"), root=root)
    assert made.returncode == 0, made.stderr
    yield root
    assert none_left(root)


def train(root: Path, *sets: str) -> subprocess.CompletedProcess[str]:
    return inv("train", *words_of(root, sets), root=root)


def start(root: Path, *sets: str) -> subprocess.Popen[str]:
    """`train` in the background."""
    return subprocess.Popen(
        [sys.executable, "-B", "-m", "dflash", "train", *words_of(root, sets), "--root", str(root)],
        cwd=HOME,
        env={**os.environ, "DFLASH_TEST_ROOT": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def words_of(root: Path, sets: Sequence[str]) -> list[str]:
    return ["--pipeline", str(root / "tiny.yaml"), *(word for each in sets for word in ("--set", each))]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        pytest.param(
            *("empty", b"", "{file}: the data file is empty; write one JSON record on each line"),
            marks=pytest.mark.nightly,
        ),
        ("not-json", b'{"text": "long enough to train on"}\n{"text": oops}\n', "{file}:2: not JSON ("),
        pytest.param(
            "nothing-to-train-on",
            b'{"conversations": [{"role": "user", "content": "a question that nobody answers"}]}\n{"text": "abc"}\n',
            "{file}: no document is left to train on (1 x no trainable token, 1 x shorter than a block); give ",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            *("latin", b'{"text": "caf\xe9 au lait"}\n', "{file}:1: byte 14 is not UTF-8; save the file as UTF-8"),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() and "{" not in value else "",
)
def test_a_bad_data_file_is_named_with_its_line(tiny: Path, tmp_path: Path, name: str, content: bytes, says: str):
    file = tmp_path / f"{name}.jsonl"
    file.write_bytes(content)
    done = train(tiny, f"data.file={file}")
    assert refused(done, 4).startswith(f"error: step data: {says.format(file=file)}")
    assert "target     skipped" in done.stderr


@pytest.mark.parametrize("setting", ["data.file", "target.folder"])
def test_a_path_that_is_not_there_is_named_before_anything_runs(tiny: Path, tmp_path: Path, setting: str):
    before = len(list((tiny / "runs").iterdir()))
    option = f"{setting}={tmp_path / 'absent'}"
    line = refused(train(tiny, option), 5)
    assert line.startswith(f"error: --set {option}: {setting}: {tmp_path / 'absent'}: No such file or directory; ")
    assert line.endswith(f", or name another: --set {setting}=PATH")
    assert len(list((tiny / "runs").iterdir())) == before


@pytest.mark.nightly
def test_a_second_run_is_refused_and_a_damaged_checkpoint_is_passed_over(tiny: Path):
    first = start(tiny)
    try:
        newest = wait_for_checkpoint(tiny, 3)
        line = refused(train(tiny), 6)
        assert line.startswith(f"error: {tiny / 'work'}: run ")
        assert f"(process {first.pid}) is at work here; wait for it, stop it with `kill {first.pid}`" in line
    finally:
        first.kill()
        first.communicate(timeout=40)
    assert none_left(tiny)
    newest = sorted(newest.parent.glob("step-*"))[-1]
    damage(newest / "model.safetensors")

    again = train(tiny, "train.checkpoint_every=5")
    assert again.returncode == 0, again.stderr
    notes = [line for line in again.stderr.splitlines() if line.startswith("train ")]
    assert "goes on: it was started by run " in notes[0]
    assert f"{newest / 'model.safetensors'}: is damaged: not the bytes that were saved" in notes[1]
    before = int(newest.name.removeprefix("step-")) - 5
    assert f"resumed at step {before} of 120" in notes[2]


def wait_for_checkpoint(root: Path, count: int) -> Path:
    until = time.monotonic() + 90
    while time.monotonic() < until:
        found = sorted(root.glob("work/train/*/scratch/checkpoints/step-*"))
        if found and int(found[-1].name.removeprefix("step-")) >= 5 * count:
            return found[-1]
        time.sleep(0.05)
    raise AssertionError("no checkpoint within 90 s")


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_full_disk_is_named_by_the_step_that_met_it(tmp_path: Path):
    with small_file_system(tmp_path / "small", "1m") as root:
        (root / "alone.yaml").write_text(ALONE)
        line = refused(inv("train", "--pipeline", str(root / "alone.yaml"), root=root), 5)
        assert line.startswith(f"error: step target: {root}/work/target/")
        assert line.endswith(
            "No space left on device; free space on that disk, or choose another root folder with --root"
        )


def test_a_disk_without_room_for_a_run_is_named_and_no_half_run_is_left(tmp_path: Path):
    with small_file_system(tmp_path / "small", "64k") as root:
        (root / "alone.yaml").write_text(ALONE)
        (root / "fill").write_bytes(bytes((os.statvfs(root).f_bavail - 1) * 4096))
        line = refused(inv("train", "--pipeline", str(root / "alone.yaml"), root=root), 5)
        assert "No space left on device; free space on that disk" in line
        assert list((root / "runs").iterdir()) == []


def test_a_folder_that_can_not_be_written_is_one_line(tmp_path: Path):
    folder = tmp_path / "sealed"
    folder.mkdir()
    (folder / "alone.yaml").write_text(ALONE)
    with unwritable(folder):
        line = refused(inv("train", "--pipeline", str(folder / "alone.yaml"), root=folder), 5)
        assert line.startswith(f"error: {folder}/runs: ")
        assert line.endswith("or choose another root folder with --root") or "choose another with --root" in line
        assert inv("plan", "--pipeline", str(folder / "alone.yaml"), root=folder).returncode == 0


@pytest.mark.parametrize("verb", ["train", "plan", "check", "show", "runs"])
def test_a_root_that_is_a_file_is_refused(tmp_path: Path, verb: str):
    file = tmp_path / "file"
    file.touch()
    line = refused(inv(verb, root=file), 2)
    assert line == f"error: --root {file}: this is not a folder; name a folder; a new one is made"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--set", "train.steps=0"], "--set train.steps=0: steps must be at least 1, not 0"),
        (["train", "--set", "train.optimizer.lr=-1"], "--set train.optimizer.lr=-1: lr must be above 0"),
        (["train", "--set", "train.stepz=9"], "--set train.stepz=9: unknown key 'stepz'; did you mean 'steps'?"),
        (["train", "--set"], "--set needs step.key=value; try --set train.steps=100"),
        (["train", "--stepz", "9"], "No idea what '--stepz' is; ./inv --list shows the verbs"),
        (["trian"], "No idea what 'trian' is; ./inv --list shows the verbs"),
        (["plan", "--pipeline", "absent.yaml"], "absent.yaml: there is no such file; check the path"),
        (
            ["train", "--host", "sudo", "--set", "data.file=absent.jsonl"],
            "data.file: absent.jsonl is not on this machine",
        ),
        (
            ["train", "--host", "sudo", "--set", "data.file=/absent.jsonl"],
            "sudo: data.file: /absent.jsonl is not there",
        ),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], says: str):
    done = inv(*words)
    assert refused(done, 2).startswith(f"error: {says}")
    assert done.stdout == ""


def test_yaml_that_is_none_is_named_with_line_and_column(tmp_path: Path):
    file = tmp_path / "bad.yaml"
    file.write_text("name: x\nsteps:\n  - name: a\n   uses: check\n")
    assert refused(inv("plan", "--pipeline", str(file)), 2).startswith(f"error: {file}:4:4: not YAML: ")


def test_an_environment_that_is_not_the_locks_stops_a_run_at_its_check(tmp_path: Path):
    tree = tmp_path / "tree"
    for name in ("dflash", "envs", "pipelines"):
        shutil.copytree(HOME / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for verbs in HOME.glob("tasks*.py"):
        shutil.copy(verbs, tree)
    lock = tree / "envs" / "local" / "requirements.lock"
    text = lock.read_text()
    lock.write_text(text.replace("tenacity==", "tenacity==1."))
    assert lock.read_text() != text
    done = inv("train", "--set", "check.compile_test=false", "--set", "check.min_disk_gib=0", cwd=tree)
    line = refused(done, 3)
    assert line.startswith("error: step check: environment: ")
    assert "package tenacity: " in line
    assert "the lock has 1." in line


@pytest.mark.parametrize("package", ["invoke", "psutil", "yaml", "rich"])
def test_a_package_that_is_gone_is_named_whichever_it_is(tmp_path: Path, package: str):
    program = f"import sys; sys.modules[{package!r}] = None; from dflash.cli import main; main(sys.argv[1:])"
    done = inv("train", "--host", "ssh:x", root=tmp_path, program=("-c", program))
    if package == "rich":
        done = inv("plan", root=tmp_path, program=("-c", program))
    line = refused(done, 3)
    assert line.startswith(f"error: the package {package}")
    assert line.endswith(
        "is not installed in .venv, though the lock has it; make it again: rm -r .venv && ./inv --list"
    )


@pytest.mark.nightly
def test_a_damaged_record_is_named_and_hides_no_other_run(tmp_path: Path, tiny: Path):
    (good,) = list((tiny / "runs").glob("*-alone"))
    shutil.copytree(good, tmp_path / "runs" / good.name)
    bad = tmp_path / "runs" / "20991231T000000-local"
    bad.mkdir()
    for content in ("{", "[1]", "{}"):
        (bad / "record.json").write_text(content)
        line = refused(inv("show", root=tmp_path), 4)
        assert line.startswith(f"error: {bad}/record.json: the record is damaged; ./inv runs lists the others")
    assert good.name in inv("show", good.name, root=tmp_path).stdout
    listed = json.loads(inv("runs", "--json", root=tmp_path).stdout)["runs"]
    assert [(each["id"], each["status"]) for each in listed] == [(good.name, "ok"), (bad.name, "damaged")]
    assert "damaged" in inv("runs", root=tmp_path).stdout
    assert refused(inv("show", "absent", root=tmp_path), 2).startswith(f"error: {tmp_path}/runs: there is no run ")


def test_ctrl_c_says_how_to_go_on(tiny: Path):
    running = start(tiny, "data.seed=7")
    assert running.stderr is not None
    for line in running.stderr:
        if line.startswith("data       starts"):
            running.send_signal(signal.SIGINT)
            break
    _, rest = running.communicate(timeout=40)
    assert running.returncode == 130, rest
    assert rest.splitlines()[-1] == "interrupted; the same command goes on from here"
    assert "Traceback" not in rest
