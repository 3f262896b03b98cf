"""A run for TensorBoard or MLflow: what it was set to, what it measured by step, and what it made.

Each is written by its own writer, in a program of its own (to_tensorboard.py, to_mlflow.py) with a Python that has it:
neither is in this project's lock, nor may anything be installed beside it. The program is told in lines of JSON on
standard input: {"run", "pipeline", "status", "started", "ended", "params", "tags"}, then {"step", "metrics"} of each
row, and last {"artifacts": {name: path}}.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from dflash.atomic import whole_folder
from dflash.errors import DFlashError, EnvironmentMismatch, UsageError, storage_error
from dflash.pipeline.figures import figures
from dflash.pipeline.report.busy import over_steps
from dflash.pipeline.report.contents import metrics_of, usage_of
from dflash.pipeline.report.writing import write_report
from dflash.pipeline.share import own_share
from dflash.training.sampling import flat, load_samples, rows_from
from dflash.training.usage import share_of, workers_in

PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny"}
"""What a run can be written for, and the package that does it."""

MISSING = 3
"""The exit status of a program whose package is not there."""

_MOST_ROWS = 2000
"""Of a longer training the means of its buckets are written, 512 or more: TensorBoard shows 1,000 points of a curve."""


def track(root: Path, record: Mapping[str, Any], to: str, place: str, python: str = "") -> None:
    """Write a run of `root` for `to`, one of PACKAGES: into the folder `place`/RUN for TensorBoard, whole or not at
    all; for MLflow to the file store in the folder `place`, or to what its URI names. A run that is there already is
    replaced. `python` is an interpreter that has the package; without it this one.

    Raises:
        UsageError: there is no such interpreter, or the place has something else. EnvironmentMismatch: the interpreter
        does not have the package.
        StorageError: a file can not be read or written. DFlashError: the writer failed.
    """
    interpreter = python or sys.executable
    try:
        if to == "tensorboard":
            folder = Path(place).expanduser().absolute() / record["id"]
            _refuse_others(folder)
            with whole_folder(folder) as draft:
                _write(root, record, to, str(draft), interpreter)
        else:
            uri = place if "://" in place else Path(place).expanduser().absolute().as_uri()
            _write(root, record, to, uri, interpreter)
    except OSError as failure:
        raise storage_error(failure, failure.filename or place) from failure


def _refuse_others(folder: Path) -> None:
    """The folder is replaced as a whole: a run's own may well be below the folder that was named."""
    if not folder.exists():
        return
    others = [] if folder.is_dir() else [folder]
    others = others or [each for each in folder.iterdir() if not each.name.startswith("events.out.tfevents.")]
    if others:
        what = f"{min(others).name} is there, which is no event file of TensorBoard's"
        raise UsageError(what, where=str(folder), cure="name another folder with --out, as ./boards")


def _write(root: Path, record: Mapping[str, Any], to: str, place: str, python: str) -> None:
    words = [python, "-I", "-B", str(Path(__file__).with_name(f"to_{to}.py")), place]
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as told:
        for line in lines_of(root, record, Path(scratch)):
            told.write(json.dumps(line).encode() + b"\n")
        told.seek(0)
        try:
            done = subprocess.run(words, stdin=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        except OSError as failure:
            what = failure.strerror or str(failure)
            raise UsageError(what, where=f"--python {python}", cure="name an interpreter") from failure
    if done.returncode == MISSING:
        cure = f"make one that has: python3 -m venv F && F/bin/pip install {PACKAGES[to]}; then --python F/bin/python"
        raise EnvironmentMismatch(f"{python} has no {to}", cure=cure)
    if done.returncode:
        last = done.stdout.decode(errors="replace").strip().rpartition("\n")[2]
        raise DFlashError(last or f"it ended with status {done.returncode}", where=f"{to}, {place}")


def lines_of(root: Path, record: Mapping[str, Any], scratch: Path) -> Iterator[dict[str, Any]]:
    """What the program is told. Its report is written into the folder `scratch`."""
    started = datetime.fromisoformat(record["started"]).timestamp()
    tags = {name: record.get(name) for name in ("commit", "dirty", "lock_id", "host", "python", "torch")}
    yield {
        "run": record["id"],
        "pipeline": record["pipeline"],
        "status": record["status"],
        "started": started,
        "ended": started + record["wall_s"],
        "params": _params(root / "runs" / record["id"] / "plan.json"),
        "tags": {name: str(value) for name, value in tags.items() if value is not None},
    }
    for step in record["steps"]:
        if step["kind"] == "train":
            log = metrics_of(root, record, step)
            last = own_share(root, record, step, log).last
            for number, metrics in _metrics(log, last):
                yield {"step": number, "metrics": {f"{step['name']}/{name}": value for name, value in metrics.items()}}
            workers = workers_in(usage_of(root, record, step), last)
            for role, points in over_steps(workers, share_of, _MOST_ROWS).items():
                for each in points:
                    yield {"step": each.last, "metrics": {f"{step['name']}/usage/{role}": each.mean}}
    yield {"step": 0, "metrics": {f"run/{each.name}": each.value for each in figures(record)}}
    artifacts = {"report.html": write_report(root, record, scratch / "report.html")}
    folder = root / "runs" / record["id"]
    artifacts["record.json"] = folder / "record.json"
    for step in record["steps"]:
        if step["kind"] == "export" and step["status"] in ("ok", "skipped"):
            found = (folder / "export", folder / f"export-{step['name']}", root / step["folder"])
            if drafter := next((each for each in found if each.is_dir()), None):
                artifacts[step["name"]] = drafter
    yield {"artifacts": {name: str(path) for name, path in artifacts.items()}}


def _metrics(log: Path, until: int | None) -> Iterator[tuple[int, dict[str, float]]]:
    samples = load_samples(log, until)
    if samples is None:
        return
    if samples.rows <= _MOST_ROWS:
        for row, _ in rows_from(log, 0, until):
            yield row["step"], dict(flat(row))
    else:
        for each in samples.buckets:
            yield each.last, {name: spread.mean for name, spread in each.figures.items()}


def _params(plan: Path) -> dict[str, str]:
    """The resolved configuration of each step, by path."""
    try:
        steps = json.loads(plan.read_bytes())["steps"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}
    return {path: str(value) for step in steps for path, value in _leaves(step.get("config"), step["name"])}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}")
    elif value is not None:
        yield path, value
