"""What the verbs of tasks.py do, and the one place where an error becomes a line and an exit status."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import dflash
from dflash.errors import DFlashError, EnvironmentMismatch, UsageError, storage_error

if TYPE_CHECKING:
    from invoke.program import Program

    from dflash.pipeline.plan import Plan
    from dflash.pipeline.schema import Pipeline

# Only the standard library up to here: a .venv that has lost a package must still say so in one line.

P = ParamSpec("P")
R = TypeVar("R")

HOME = Path(dflash.__file__).resolve().parents[1]

_CHECKS = (
    ("ruff", "check"),
    ("ruff", "format", "--check"),
    ("mypy", "--strict", "dflash", "tasks.py"),
)
_ORDINARY = ("pytest", "-n", "logical", "--maxprocesses", "8", "-m", "not nightly")


def main(words: Sequence[str] | None = None) -> None:
    """`./inv`: Invoke on tasks.py."""
    arguments = list(sys.argv[1:] if words is None else words)
    if arguments[-1:] == ["--set"] and "--" not in arguments:  # Invoke would take it as said, and leave it out
        sys.exit(_say(UsageError("--set needs step.key=value", cure="try --set train.steps=100")))
    sys.path.insert(0, str(HOME))
    try:
        from dflash.cli_words import as_invoke_has_them

        program = _program()
    except ModuleNotFoundError as failure:
        sys.exit(_say(_unexpected(failure, None)))
    try:
        program.run(["./inv", *as_invoke_has_them(arguments, program.namespace)])
    except BrokenPipeError:  # from what Invoke prints itself, such as --list
        _enough()


def _program() -> Program:
    """Invoke, whose complaints about the command line read like every other error."""
    from invoke.collection import Collection
    from invoke.program import Program

    class OneLine(Program):
        def parse_core(self, argv: list[str] | None) -> None:
            with _one_line():
                super().parse_core(argv)

        def parse_tasks(self) -> None:
            with _one_line():
                super().parse_tasks()

        def parse_cleanup(self) -> None:
            with _one_line():
                super().parse_cleanup()

    verbs = Collection.from_module(importlib.import_module("tasks"))
    return OneLine(dflash.__version__, verbs, name="dflash", binary="./inv", binary_names=["inv"])


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    from invoke.exceptions import ParseError

    try:
        yield
    except ParseError as failure:
        what = re.sub(r"Flag <Argument: ([\w-]+)[^>]*>", r"--\1", str(failure)).rstrip("!")
        sys.exit(_say(UsageError(what, cure="./inv --list shows the verbs")))


def verb(body: Callable[P, R]) -> Callable[P, R]:
    """Turn what a verb raises into `error: ...` on standard error and a true exit status.

    A traceback never reaches a person: that of an unexpected error is written to a file which the line names.
    """

    @functools.wraps(body)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            _all_given(body, kwargs)
            result = body(*args, **kwargs)
            sys.stdout.flush()
            return result
        except DFlashError as failure:
            sys.exit(_say(failure))
        except BrokenPipeError:
            _enough()
        except OSError as failure:
            sys.exit(_say(storage_error(failure)))
        except KeyboardInterrupt:
            sys.exit(130)
        except Exception as failure:
            sys.exit(_say(_unexpected(failure, kwargs.get("root"))))

    return guarded


def _all_given(body: Callable[..., object], given: Mapping[str, object]) -> None:
    """Invoke gives None for an option that has no default and was left out."""
    for name, parameter in inspect.signature(body).parameters.items():
        if parameter.default is inspect.Parameter.empty and name in given and given[name] is None:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is missing", cure=f"give it: --{option} VALUE")


def _enough() -> NoReturn:
    """Whoever read our output has enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(141)


def train(*, pipeline: str, host: str, root: str, overrides: Sequence[str], as_json: bool) -> None:
    """Plan a pipeline, run it, and say how it went. Exits with the status of the run."""
    from dflash.pipeline.kinds import DEFAULT_KINDS
    from dflash.pipeline.request import request_of

    folder = root_of(root)
    plan = planned(pipeline, host, folder, overrides)
    run(plan, folder, request_of(plan.pipeline, overrides, plan.host, DEFAULT_KINDS, Path.cwd(), plan.hosts), as_json)


def run(plan: Plan, folder: Path, request: Mapping[str, Any], as_json: bool) -> NoReturn:
    """Run a plan below `folder`, and say how it went. Exits with the status of the run."""
    from dflash.pipeline.run import execute
    from dflash.pipeline.show import show_record
    from dflash.pipeline.view import view_for

    outcome = execute(plan, folder, view_for(sys.stderr), request["kinds"], None, request)
    if as_json:
        print_json(outcome.record)
    else:
        show_record(outcome.record, str(folder / "runs" / outcome.record["id"]))
    if outcome.failure:
        _say(outcome.failure)
    elif outcome.signal:
        print("interrupted; the same command goes on from here", file=sys.stderr)
    sys.exit(outcome.exit_code)


def check(*, pipeline: str, root: str, as_json: bool) -> None:
    """Look at this machine and judge it as the pipeline's check step would."""
    from dflash.pipeline.show import console_on
    from dflash.progress import Silent
    from dflash.provision.check import check as judged
    from dflash.provision.check import require
    from dflash.provision.table import findings_of, print_table

    loaded = load(pipeline)
    configs = [step.config for step in loaded.steps if step.kind.name == "check"]
    if not configs:
        raise UsageError("the pipeline has no step that uses check", where=loaded.file)
    result = judged(configs[0], root_of(root), Silent())
    if as_json:
        print_json(result)
    else:
        print_table(findings_of(result), console_on())
    require(result)


def lint() -> None:
    """Run ruff and mypy; exits with the status of the first that fails."""
    _tools(*_CHECKS)


def test(*, nightly: bool) -> None:
    """Lint, then run the tests, those of every day by as many processes as there are processors; exits with the status
    of the first tool that fails."""
    _tools(*_CHECKS, ("pytest",) if nightly else _ORDINARY)


def print_json(document: Any) -> None:
    """The one document on standard output."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _tools(*tools: tuple[str, ...]) -> None:
    from dflash.pipeline.process import calm

    for words in tools:
        print(f"$ {' '.join(words)}", file=sys.stderr, flush=True)
        status = subprocess.run([sys.executable, "-m", *words], cwd=HOME, env=calm(os.environ), check=False).returncode
        if status:
            sys.exit(status if status > 0 else 128 - status)


def planned(pipeline: str, host: str, root: Path, overrides: Sequence[str]) -> Plan:
    """The plan of a pipeline, as far as it is known on this machine."""
    from dflash.hosts.inventory import find_host
    from dflash.pipeline.keys import observe
    from dflash.pipeline.machines import machines_of
    from dflash.pipeline.plan import make_plan
    from dflash.pipeline.store import Store

    where, loaded = find_host(host, HOME / "hosts.yaml"), load(pipeline, overrides)
    hosts = machines_of(loaded, where, HOME / "hosts.yaml")
    return make_plan(loaded, where, observe(loaded) if where.chain.is_local else None, Store(root), hosts)


def load(pipeline: str, overrides: Sequence[str] = ()) -> Pipeline:
    """A pipeline by its path as given; below the project when it is not below the current folder."""
    from dflash.pipeline.kinds import load_kinds
    from dflash.pipeline.schema import load_pipeline

    path = Path(pipeline)
    return load_pipeline(path if path.exists() or not (HOME / path).exists() else HOME / path, load_kinds(), overrides)


def root_of(given: str) -> Path:
    """The folder that holds work/ and runs/."""
    root = Path(given).expanduser().resolve() if given else HOME
    if root.exists() and not root.is_dir():
        raise UsageError("this is not a folder", where=f"--root {given}", cure="name a folder; a new one is made")
    return root


def refuse_root(root: str) -> None:
    """Raise UsageError for a --root that was given beside a host that is not this machine."""
    if root:
        raise UsageError("the root of a host is in hosts.yaml", where="--root", cure="leave it out")


def _say(error: DFlashError) -> int:
    """Print an error's line; its exit status."""
    print(f"error: {error}", file=sys.stderr)
    return int(getattr(error, "status", error.exit_code))


def _unexpected(failure: Exception, root: object) -> DFlashError:
    """What to say of an error that no room foresaw: a package that is gone, or a bug whose traceback is kept."""
    if isinstance(failure, ModuleNotFoundError) and (failure.name or "dflash").partition(".")[0] != "dflash":
        what = f"the package {failure.name} is not installed in .venv, though the lock has it"
        return EnvironmentMismatch(what, cure="make it again: rm -r .venv && ./inv --list")
    cure = f"the traceback is in {_keep(failure, root)}"
    return DFlashError(f"{type(failure).__name__}: {failure}", cure=cure)


def _keep(failure: BaseException, root: object) -> Path:
    """Write a traceback where it can be found: below the root's runs, or else in the temporary folder."""
    name = f"crash-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    text = "".join(traceback.format_exception(failure))
    for folder in (
        (Path(os.path.expanduser(root)) if isinstance(root, str) and root else HOME) / "runs",
        Path(tempfile.gettempdir()),
    ):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        except OSError:
            continue
        return folder / name
    return Path(os.devnull)
