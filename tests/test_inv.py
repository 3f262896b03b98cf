"""`./inv` in a small tree whose lock has the real uv and Invoke and one tiny package; no index is asked."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash.environments.bootstrap import WARM, block_of, in_range, pip_settings, uv_environment
from tests.mounts import small_file_system, unwritable
from tests.wheels import make_wheel, pin, repack

REPOSITORY = Path(__file__).parents[1]
TASKS = """
from invoke import task

@task
def hello(c):
    \"\"\"Say which alpha is installed.\"\"\"
    import alpha
    print("alpha", alpha.version)

@task
def seven(c):
    \"\"\"Fail.\"\"\"
    raise SystemExit(7)
"""

MAIN = """
import sys
import tasks
from invoke import Collection, Program
Program(namespace=Collection.from_module(tasks), binary="./inv").run(["./inv", *sys.argv[1:]])
"""


class Tree:
    """A working tree with `inv`, `tasks.py`, what runs that, and envs/local, and nothing else."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder, self.wheels = folder, wheels
        for name in ("inv", "dflash/environments/bootstrap.py", "envs/local/env.yaml"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
        (folder / "tasks.py").write_text(TASKS)
        (folder / "dflash" / "__main__.py").write_text(MAIN)
        self.lock = folder / "envs/local/requirements.lock"
        self.lock.write_text("".join(pin(wheel) for wheel in sorted(wheels.glob("*.whl")) if "-2.0-" not in wheel.name))
        self.environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_", "PYTHON"))},
            "PYTHON": sys._base_executable,  # type: ignore[attr-defined]
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
            "UV_CACHE_DIR": str(wheels.parent / "uv-cache"),
        }
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(self.folder / "inv"), *words],
            cwd="/",
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def inv(self, *words: str, **environ: str) -> tuple[int, str, str]:
        process = self.start(*words, **environ)
        out, complaints = process.communicate(timeout=120)
        return process.returncode, out, complaints

    def site(self) -> Path:
        (site,) = (self.folder / ".venv/lib").glob("python3*/site-packages")
        return site


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inv") / "wheels"
    for name in ("uv", "invoke"):
        repack(folder, name)
    make_wheel(folder, "alpha")
    make_wheel(folder, "alpha", "2.0")
    return folder


@pytest.fixture
def tree(wheels: Path, tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path / "a tree", wheels)  # a space, as in many a home
    yield tree
    for process in tree.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, "nothing happened in 60 s"
        time.sleep(0.02)


def test_the_environment_is_made_once_and_again_when_what_it_is_made_from_changes(tree: Tree) -> None:
    status, out, complaints = tree.inv("hello")
    assert (status, out) == (0, "alpha 1.0\n"), complaints
    assert len(complaints.splitlines()) <= 4
    assert complaints.startswith("inv: making .venv with Python ")

    started = time.monotonic()
    assert tree.inv("hello") == (0, "alpha 1.0\n", "")
    assert time.monotonic() - started < 5

    status, out, complaints = tree.inv()
    assert (status, complaints) == (0, "")
    assert "hello" in out
    assert "Say which alpha is installed." in out
    assert tree.inv("seven")[0] == 7

    # Nothing but the environment, its lock and what was there: no bytecode either.
    outside = {path.name for path in tree.folder.rglob("*") if ".venv" not in path.relative_to(tree.folder).parts[0]}
    assert not [name for name in outside if name == "__pycache__" or name.endswith(".pyc")]

    new = pin(tree.wheels / "alpha-2.0-py3-none-any.whl")
    old = pin(tree.wheels / "alpha-1.0-py3-none-any.whl")
    tree.lock.write_text(tree.lock.read_text().replace(old, new))
    status, out, complaints = tree.inv("hello")
    assert (status, out) == (0, "alpha 2.0\n"), complaints
    assert not (tree.site() / "alpha-1.0.dist-info").exists()


@pytest.mark.nightly
def test_a_file_whose_hash_is_not_the_locks_is_refused_until_the_lock_is_right(tree: Tree) -> None:
    right = tree.lock.read_text()
    entry = block_of(right, "alpha")
    assert entry is not None
    tree.lock.write_text(right.replace(entry, entry[: entry.index("sha256:") + 7] + "0" * 64 + "\n"))
    status, out, complaints = tree.inv("hello")
    assert (status, out) == (3, "")
    assert complaints.splitlines()[-1].startswith("error: the packages could not be installed as")
    assert "alpha" in complaints
    assert "Traceback" not in complaints
    assert not (tree.folder / ".venv/dflash-stamp").exists()

    tree.lock.write_text(right)
    assert tree.inv("hello")[:2] == (0, "alpha 1.0\n")


@pytest.mark.nightly
def test_two_at_once_make_one_environment_even_when_the_first_one_is_killed(tree: Tree) -> None:
    first = tree.start("hello")
    wait_for(lambda: (tree.folder / ".venv/bin/python").exists())
    second, third = tree.start("hello"), tree.start("hello")
    time.sleep(0.5)  # both wait by now
    os.killpg(first.pid, signal.SIGKILL)
    assert not (tree.folder / ".venv/dflash-stamp").exists()
    results = [process.communicate(timeout=120) for process in (second, third)]
    assert [process.returncode for process in (second, third)] == [0, 0], results
    assert [out for out, _ in results] == ["alpha 1.0\n"] * 2
    assert sum("inv: making .venv" in complaints for _, complaints in results) == 1
    assert all("another ./inv is making .venv" in complaints for _, complaints in results)


def test_ctrl_c_stops_the_making_with_one_line(tree: Tree) -> None:
    process = tree.start("hello")
    wait_for(lambda: (tree.folder / ".venv/bin/python").exists())
    os.killpg(process.pid, signal.SIGINT)
    out, complaints = process.communicate(timeout=30)
    assert process.returncode != 0
    assert out == ""
    assert complaints.splitlines()[1:] == ["error: stopped; the next ./inv makes .venv again"]


def test_a_python_that_will_not_do_is_one_clear_line(tree: Tree, tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\necho 'Python 3.8 is too old'\nexit 3\n")
    old.chmod(0o755)
    status, out, complaints = tree.inv("hello", PYTHON=str(old))
    assert (status, out) == (3, "")
    assert complaints == "error: Python 3.8 is too old; install one, or name it: PYTHON=/path/to/python3 ./inv\n"

    status, _, complaints = tree.inv("hello", PYTHON=str(tmp_path / "absent"))
    assert status == 3
    assert len(complaints.splitlines()) == 1
    assert "absent can not be run" in complaints

    bare = tmp_path / "bin"  # a machine with no Python at all
    bare.mkdir()
    for name in ("dirname", "sh"):
        found = shutil.which(name)
        assert found is not None
        (bare / name).symlink_to(found)
    status, _, complaints = tree.inv("hello", PATH=str(bare), PYTHON="")
    assert status == 3
    assert complaints.startswith("error: no Python 3.11, 3.12 or 3.13 was found; install one")
    assert not (tree.folder / ".venv").exists()


def test_a_disk_that_is_full_or_can_not_be_written_is_one_line(wheels: Path, tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", "24m") as folder:
        status, out, complaints = Tree(folder, wheels).inv("hello")
        assert (status, out) == (5, "")
        assert re.search(r"^error: .*/small/.venv: \d+ MiB are free, 1400 are needed; ", complaints, re.MULTILINE)
    sealed = tmp_path / "sealed"
    tree = Tree(sealed, wheels)
    with unwritable(sealed):
        status, out, complaints = tree.inv("hello")
        assert (status, out) == (5, "")
        assert re.fullmatch(r"error: .*/sealed/.venv.lock: .*; this folder has to be writable, .*\n", complaints)


def test_pips_settings_reach_uv_and_what_is_set_for_uv_stays() -> None:
    listing = (
        ":env:.find-links='/wheels /more'\nglobal.index-url='there'\ninstall.index-url='elsewhere'\n"
        "global.extra-index-url='\\none\\ntwo'\n:env:.cert='/ca.pem'\nsomething else\nglobal.timeout='9'\n"
    )
    settings = pip_settings(listing)
    assert settings["index-url"] == "elsewhere"
    environ = uv_environment(settings, {"UV_LINK_MODE": "hardlink", "HOME": "/h"})
    assert environ == {
        "HOME": "/h",
        "UV_LINK_MODE": "hardlink",
        "UV_INDEX_URL": "elsewhere",
        "UV_EXTRA_INDEX_URL": "one two",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_HTTP_TIMEOUT": "9",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/ca.pem",
    }
    assert "UV_INDEX_URL" not in uv_environment(settings, {"UV_DEFAULT_INDEX": "mine"})


def test_what_a_build_warms_for_the_verbs_can_be_imported() -> None:
    """A build goes on when it can not. (Whether torch can, other tests show.)"""
    verbs = WARM.partition("Qwen3ForCausalLM\n")[2]
    assert "invoke" in verbs
    subprocess.run([sys.executable, "-IB", "-c", verbs], check=True)


def test_the_range_of_pythons_is_compared_by_number() -> None:
    assert in_range((3, 11), ">=3.11,<3.14")
    assert not in_range((3, 9), ">=3.11,<3.14")
    assert not in_range((3, 14), ">=3.11,<3.14")
