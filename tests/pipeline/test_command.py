"""A program of one's own as a step: what it is given, how it ends, and what it is made again for."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.errors import StepFailed, UsageError
from dflash.pipeline.command import COMMAND, CommandConfig, run
from dflash.pipeline.keys import Surroundings, key_fields, key_of
from dflash.pipeline.kinds import StepInputs
from dflash.pipeline.schema import Pipeline, load_pipeline
from dflash.progress import Silent

TWO = """\
name: two
steps:
  - name: make-it
    uses: command
    with: {argv: [touch, made]}
  - name: look
    uses: command
    needs: [make-it]
    with: {argv: [ls]}
"""


def step(out: Path, *argv: str, **inputs: Path) -> StepInputs:
    return StepInputs(CommandConfig(argv), inputs, {}, out, out, Silent())


def test_a_program_runs_in_its_folder_with_the_folders_of_what_it_needs_and_no_shell(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", f"/first{os.pathsep}/second")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    text = "import os, sys; print(os.getcwd(), sys.argv[1:]); print(os.environ['DFLASH_OUT'], sys.stdin.read())"
    text += "; print(os.environ['DFLASH_STEP_MAKE_IT'], os.environ.get('PYTHONSAFEPATH'), os.environ['PYTHONPATH'])"
    result = run(step(tmp_path, sys.executable, "-c", text, "$HOME; *", **{"make-it": Path("/made")}))
    assert result["argv"][3] == "$HOME; *"
    assert capfd.readouterr().out == f"{tmp_path} ['$HOME; *']\n{tmp_path} \n/made None /second\n"


def test_a_program_is_told_where_relative_inputs_begin_if_it_has_any(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    print_it = step(tmp_path, "sh", "-c", 'echo "${DFLASH_PROJECT-none}"')
    run(replace(print_it, project=Path("/the project")))
    run(print_it)
    assert capfd.readouterr().out == "/the project\nnone\n"


@pytest.mark.parametrize(
    ("argv", "status", "line"),
    [
        (("sh", "-c", "exit 7"), 7, "'sh' ended with status 7; its log is /dev/null"),
        (("sh", "-c", "kill -9 $$"), 137, "'sh' was killed by signal 9"),
        (("no-such-program",), 127, "'no-such-program' can not be run: No such file or directory; name a program"),
    ],
)
def test_its_exit_status_is_the_steps(tmp_path: Path, argv: tuple[str, ...], status: int, line: str):
    with pytest.raises(StepFailed) as caught:
        run(step(tmp_path, *argv))
    assert caught.value.status == status
    assert str(caught.value).startswith(line)


@contextlib.contextmanager
def interrupted_once_there_is(file: Path) -> Iterator[None]:
    """This thread gets a Ctrl-C in the block, when the file is there."""

    def interrupt() -> None:
        while not file.exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


def test_a_stop_is_passed_on_and_waited_for(tmp_path: Path):
    text = f"trap 'echo saved > {tmp_path}/saved; exit 0' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"

    with interrupted_once_there_is(tmp_path / "ready"), pytest.raises(KeyboardInterrupt):
        run(step(tmp_path, "sh", "-c", text))
    assert (tmp_path / "saved").read_text() == "saved\n"


def test_a_stop_reaches_what_a_shell_waits_for(tmp_path: Path):
    inner = f"trap 'sleep 0.3; echo saved > {tmp_path}/saved; exit 0' TERM; touch {tmp_path}/ready; while :; do "
    inner += "sleep 0.05; done"

    with interrupted_once_there_is(tmp_path / "ready"), pytest.raises(KeyboardInterrupt):
        run(step(tmp_path, "sh", "-c", 'sh -c "$1"; true', "sh", inner))
    assert (tmp_path / "saved").read_text() == "saved\n"


def test_its_key_is_made_of_its_words_and_of_what_it_needs(tmp_path: Path):
    def key(text: str) -> str:
        (tmp_path / "two.yaml").write_text(text)
        made: Pipeline = load_pipeline(tmp_path / "two.yaml", {"command": COMMAND})
        seen = Surroundings("lock", "3.11", {"command": {}}, {step.name: {} for step in made.steps})
        keys: dict[str, str] = {}
        for each in made.steps:
            keys[each.name] = key_of(key_fields(each, made, seen, keys))
        return keys["look"]

    assert key(TWO) == key(TWO)
    assert key(TWO) != key(TWO.replace("[ls]", "[ls, -l]"))
    assert key(TWO) != key(TWO.replace("[touch, made]", "[touch, other]"))


def test_words_that_no_program_can_be_given_and_names_that_are_one_are_refused(tmp_path: Path):
    for argv in ((), ("",), ("echo", "a\0b")):
        with pytest.raises(ValueError, match="argv"):
            CommandConfig(argv)
    with pytest.raises(UsageError, match="would both be DFLASH_STEP_A_B_1"):
        run(step(tmp_path, "true", **{"a@b=1": Path("/1"), "a_b_1": Path("/2")}))
