"""The verbs as a person types them: help, plain errors, true exit statuses, and JSON with nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dflash import cli
from dflash.errors import StepFailed
from dflash.pipeline.keys import HOME
from tests.pipeline.lab import SAMPLE

_MAIN = """
import sys
import dflash.pipeline.kinds as kinds
kinds.DEFAULT_KINDS = "tests.pipeline.sample_kinds:KINDS"
kinds.load_kinds.__defaults__ = (kinds.DEFAULT_KINDS,)
from dflash.cli import main
main(sys.argv[1:])
if {look!r}:
    heavy = [name for name in ("torch", "transformers", "numpy", "tenacity") if name in sys.modules]
    sys.exit("imported: " + " ".join(heavy) if heavy else 0)
"""

_HELP = """
import contextlib, sys
from dflash.cli import main
for verb in sys.argv[1:]:
    print(end="\\f", flush=True)
    with contextlib.suppress(SystemExit):
        main(["--help", verb])
"""


def inv(*words: str, look: bool = False, cwd: Path = HOME) -> subprocess.CompletedProcess[str]:
    """Run a verb with the sample kinds of steps."""
    return subprocess.run(
        [sys.executable, "-c", _MAIN.format(look=look), *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(HOME)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    file = tmp_path / "pipeline.yaml"
    file.write_text(SAMPLE)
    return file


def at(pipeline: Path) -> Sequence[str]:
    return "--pipeline", str(pipeline), "--root", str(pipeline.parent)


def test_the_list_fits_a_terminal_and_every_verb_and_option_has_help():
    listed = inv("--list").stdout
    verbs = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
    assert " ".join(verbs) == (
        "bench build check compare evaluate exec export follow get graph jobs lint ping plan prewarm provision put "
        "replay report resume rm runs show split stop test train "
        "cache.get cache.list cache.pin cache.put cache.remove cache.restore cache.save cache.show cache.verify "
        "env.create env.diff env.gc env.list env.lock env.pin env.rollback env.use env.verify env.wheelhouse "
        "image.verify"
    )
    program = [sys.executable, "-c", _HELP, *verbs]
    every = subprocess.run(program, cwd=HOME, capture_output=True, text=True, timeout=60).stdout.split("\f")[1:]
    assert len(every) == len(verbs)
    for said in every:
        options = [line for line in said.splitlines() if line.startswith("  --")]
        assert said.startswith("Usage:")
        assert "none" not in said.partition("Docstring:")[2].split("Options:")[0]
        assert all(len(line.split()) > 3 for line in options)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bogus"], "No idea what 'bogus' is"),
        (["plan", "--bogus"], "No idea what '--bogus' is"),
        (["plan", "extra"], "No idea what 'extra' is"),
        (["plan", "--host"], "--host needed value"),
        (["plan", "--pipeline", "absent.yaml"], "absent.yaml: there is no such file"),
        (["plan", "--host", "shh:gpu1"], "there is no hop 'shh'; did you mean 'ssh'?"),
        (["plan", "--host", "gpu1"], "'gpu1' is a name, and there is no inventory"),
        (["show", "--root", "/nonexistent"], "there is no run yet"),
        (["runs", "--status", "okay"], "there is no status 'okay'; did you mean 'ok'?"),
        (["report", "absent", "--root", "/nonexistent"], "there is no run yet"),
        (["train", "--wait"], "--environment, --wheels and --wait are for a run on a host; name a host"),
        (["train", "--host", "gpu1,gpu2"], "train takes one host; give each a ./inv train of its own"),
        (["follow", "absent"], "there is no run 'absent'; ./inv runs lists them; a job of a host needs --host H"),
        (["train", "--set", "trian.steps=1"], "has no step 'trian'; did you mean 'train'?"),
    ],
)
def test_a_mistake_is_one_line_and_no_success(pipeline: Path, words: list[str], says: str):
    if words[0] in ("plan", "train") and "--pipeline" not in words:
        words = [*words, *at(pipeline)] if words[-1] != "--host" else words
    done = inv(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_plan_prints_the_steps_and_which_need_a_gpu(pipeline: Path):
    done = inv("plan", *at(pipeline), "--host", "ssh:root@gpu1/pct:200", "--set", "train.gpus=8")
    assert done.returncode == 0, done.stderr
    assert "sample on ssh:root@gpu1/pct:200" in done.stdout
    assert "prewarm, train need a GPU." in done.stdout
    document = json.loads(inv("plan", *at(pipeline), "--json").stdout)
    assert [each["name"] for each in document["steps"]] == ["check", "target", "prewarm", "train", "evaluate"]


@pytest.mark.parametrize("verb", ["plan", "graph"])
def test_planning_imports_nothing_heavy(pipeline: Path, verb: str):
    done = inv(verb, *at(pipeline), look=True)
    assert done.returncode == 0, done.stderr


def test_graph_writes_a_picture_of_the_plan(pipeline: Path):
    out = pipeline.parent / "plan.svg"
    done = inv("graph", *at(pipeline), "--out", str(out), "--set", "train:when=false")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert ">left out</text>" in out.read_text()
    done = inv("graph", *at(pipeline), "--out", str(pipeline.parent))
    assert (done.returncode, done.stderr) == (
        5,
        f"error: {pipeline.parent}: Is a directory; check that the path exists and can be used\n",
    )


def test_a_run_is_shown_listed_and_skipped_the_second_time(pipeline: Path):
    root = ("--root", str(pipeline.parent))
    done = inv("train", *at(pipeline), "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert "train      5/5  loss 1" in done.stderr
    assert json.loads(inv("show", record["id"], *root, "--json").stdout) == record
    assert json.loads(inv("show", "--json", *root, record["id"]).stdout) == record
    again = inv("train", *at(pipeline))
    assert again.returncode == 0
    assert "skipped" in again.stdout
    assert "acceptance length 2.50 (untrained 1.00)" in again.stdout
    assert "2 of 2 outputs equal" in inv("show", *root).stdout
    listed = json.loads(inv("runs", *root, "--json").stdout)["runs"]
    assert listed[0]["id"] == record["id"]
    assert len(listed) == 2
    assert record["id"] in inv("runs", *root).stdout
    compared = inv("compare", record["id"], listed[1]["id"], *root, look=True)
    assert compared.returncode == 0, compared.stderr
    assert "acceptance length" in compared.stdout
    reported = inv("report", *root, look=True)
    assert reported.returncode == 0, reported.stderr
    assert Path(reported.stdout.strip()).parent.name == listed[1]["id"]


def test_a_failed_run_exits_as_its_step_did_and_still_gives_its_record(pipeline: Path):
    done = inv("train", *at(pipeline), "--set", "train.fault=data", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["status"] == "failed"
    assert done.stderr.splitlines()[-1] == ("error: step train: corpus.jsonl:3: this line is not JSON; remove it")


def test_an_unexpected_error_is_one_line_naming_its_traceback(tmp_path: Path, capsys: pytest.CaptureFixture):
    @cli.verb
    def broken(*, root: str) -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(SystemExit) as caught:
        broken(root=str(tmp_path))
    assert caught.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ZeroDivisionError: a bug; the traceback is in ")
    assert "in broken" in Path(said.split()[-1]).read_text()


def test_a_traceback_is_kept_below_the_root_that_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    @cli.verb
    def broken(*, root: str) -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(SystemExit):
        broken(root="~/x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("failure", "code"),
    [(StepFailed("x", status=9), 9), (PermissionError(13, "denied", "/x"), 5), (KeyboardInterrupt(), 130)],
)
def test_each_kind_of_error_has_its_exit_status(failure: BaseException, code: int):
    @cli.verb
    def failing() -> None:
        raise failure

    with pytest.raises(SystemExit) as caught:
        failing()
    assert caught.value.code == code


def test_without_a_run_the_list_says_how_to_get_one(tmp_path: Path):
    assert inv("runs", "--root", str(tmp_path)).stdout == "There is no run yet; ./inv train starts one.\n"
    assert json.loads(inv("runs", "--root", str(tmp_path), "--json").stdout) == {"runs": []}


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path):
    verb = f"{sys.executable} -m dflash plan --root {tmp_path} --json"
    script = ["bash", "-c", f"set -o pipefail; {verb} | true"]
    done = subprocess.run(script, cwd=HOME, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_first_failing_tool_ends_a_lint_with_its_status(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SystemExit) as caught:
        cli._tools(("platform", "--terse"), ("ruff", "no-such-command"), ("ruff", "--version"))
    assert caught.value.code == 2
