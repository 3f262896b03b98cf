"""`./inv exec` and `./inv ping`: a command there behaves as one here, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


def inv(*words: str | bytes, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-B", "-m", "dflash", *words]
    return subprocess.run(program, cwd=REPOSITORY, input=stdin, capture_output=True, timeout=60, check=False)


def test_streams_status_and_words_pass_through_exactly():
    every_byte = bytes(range(256)) * 1000
    script = 'printf %s "$1"; cat; printf "an error\\377" >&2; exit 42'
    done = inv("exec", "--host", "local", "--", "sh", "-c", script, "sh", b"it's \xff $(id)\n", stdin=every_byte)
    assert done.returncode == 42
    assert done.stdout == b"it's \xff $(id)\n" + every_byte
    assert done.stderr == b"an error\xff"


def test_what_looks_like_an_option_after_the_dashes_belongs_to_the_command():
    assert inv("exec", "--host", "local", "--", "echo", "--host", "--", "-x").stdout == b"--host -- -x\n"


def test_a_death_by_signal_gives_the_status_a_shell_would():
    assert inv("exec", "--host", "local", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_variables_and_folder_are_set(tmp_path: Path):
    done = inv(
        "exec",
        "--host",
        "local",
        "--env",
        "NAME=a; b=$c",
        "--cwd",
        str(tmp_path),
        "--",
        "sh",
        "-c",
        'pwd; echo "$NAME"',
    )
    assert done.stdout.decode() == f"{tmp_path}\na; b=$c\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("probe.py", 'import sys\nprint(sys.argv[1:], "it\'s", \'"$HOME"\')\n'),
        ("probe", '#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:], "it\'s", \'"$HOME"\')\n'),
        ("probe.sh", 'printf "[\'%s\', \'%s\'] it\'s \\"\\$HOME\\"\\n" "$1" "$2"\n'),
    ],
)
def test_a_script_goes_along_with_its_own_interpreter(tmp_path: Path, name: str, text: str):
    script = tmp_path / name
    script.write_text(text)
    done = inv("exec", "--host", "local", "--script", str(script), "--", "a b", "$(id)")
    assert done.stdout.decode() == "['a b', '$(id)'] it's \"$HOME\"\n", done.stderr


def test_several_hosts_answer_each_on_its_own_lines_and_one_failure_is_the_status():
    done = inv("exec", "--host", "local,lxc:no-such-container", "--", "echo", "here")
    assert done.returncode == 1
    assert done.stdout == b"local: here\n"
    assert b"2 hosts: 1 ok, 1 failed" in done.stderr
    assert b"Traceback" not in done.stderr


def test_what_one_host_gave_is_not_hidden_by_another_that_failed():
    done = inv("jobs", "--host", "local,ssh:no-such-host.invalid", "--json")
    assert done.returncode == 1
    assert "jobs" in json.loads(done.stdout)
    assert b"can not be resolved" in b" ".join(done.stderr.split())


def test_ping_tells_each_layer():
    done = inv("ping", "--host", "local", "--json")
    (layer,) = json.loads(done.stdout)["layers"]
    assert layer["layer"] == "local"
    assert 0 < layer["round_trip_s"] < 1
    assert layer["python"].startswith("3.")


@pytest.mark.parametrize(
    ("words", "line", "status"),
    [
        (["exec", "--host", "local"], "error: there is no command", 2),
        (["exec", "--host", "local", "--env", "X", "--", "true"], "error: --env: 'X' sets nothing", 2),
        (["exec", "--host", "local", "--", "no-such-program"], "error: local: no-such-program: No such file", 127),
        (["exec", "--host", "local", "--script", "none.py"], "error: none.py: No such file", 5),
        (["exec", "--host", "ssh:a b", "--", "true"], "error: chain 'ssh:a b', hop 1", 2),
        (["ping", "--host", "nowhere"], "error: ", 2),
        (["put", "README.md", "x"], "error: --host is missing; give it: --host VALUE", 2),
        (
            ["follow", "20260101T000000-abcd", "--host", "local", "--offset", "-5"],
            "error: --offset -5: a log begins",
            2,
        ),
    ],
)
def test_a_mistake_is_one_line_and_a_true_status(words: list[str], line: str, status: int):
    done = inv(*words)
    assert done.returncode == status
    assert done.stderr.decode().startswith(line)
    assert done.stderr.count(b"\n") == 1
