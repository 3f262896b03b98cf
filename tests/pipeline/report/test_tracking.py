"""A run for TensorBoard and MLflow, by their own writers, as their own readers read it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash.environments.locking import uv
from dflash.errors import DFlashError, EnvironmentMismatch, UsageError
from dflash.pipeline.record import load_record
from dflash.pipeline.report.to_mlflow import allowed
from dflash.pipeline.report.tracking import PACKAGES, lines_of, track
from dflash.training.metriclog import MetricLog
from dflash.training.usage import USAGE
from tests.pipeline.lab import Lab
from tests.pipeline.report.sample import OLD, RECORD, noted, rows
from tests.pipeline.report.test_contents import write_usage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run with a training of 30 rows and an exported drafter."""
    plan = {"steps": [{"name": "train", "config": {"optimizer": {"lr": 0.002}, "start": None}}]}
    for run in (RECORD["id"], "20261130T000000-local"):
        folder = tmp_path / "runs" / run
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps({**RECORD, "id": run}))
        (folder / "plan.json").write_text(json.dumps(plan))
        (folder / "export").mkdir()
        (folder / "export" / "config.json").write_text("{}")
        log = MetricLog(folder / "metrics.jsonl", 0)
        for row in rows(30):
            log.write(row)
        log.close()
    return tmp_path


def test_a_run_is_told_with_its_settings_each_row_and_what_it_made(root: Path, tmp_path: Path):
    first, *told, last = lines_of(root, RECORD, tmp_path)
    assert (first["run"], first["status"], round(first["ended"] - first["started"], 3)) == (RECORD["id"], "ok", 312.4)
    assert first["params"] == {"train.optimizer.lr": "0.002"}
    assert first["tags"]["lock_id"] == RECORD["lock_id"]
    assert [each["step"] for each in told] == [*range(1, 31), 0]
    assert told[6]["metrics"]["train/loss"] == 6 / 7
    assert told[6]["metrics"]["train/accuracy.2"] == 0.3
    assert told[-1]["metrics"]["run/acceptance_length"] == 2.41
    assert last["artifacts"].keys() == {"report.html", "record.json", "export"}
    assert all(Path(path).exists() for path in last["artifacts"].values())


def test_a_drafter_that_is_half_written_is_no_artifact(root: Path, tmp_path: Path):
    half = root / "work" / "export" / "0123456789abcdef"
    half.mkdir(parents=True)
    for status, is_told in (("failed", False), ("interrupted", False), ("ok", True)):
        steps = [{**each, "status": status} if each["kind"] == "export" else each for each in RECORD["steps"]]
        *_, last = lines_of(root, {**RECORD, "steps": steps}, tmp_path)
        assert ("export" in last["artifacts"]) == is_told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("train/accuracy.2", "train/accuracy.2"),
        ("train@seed=1,lr=1e-05.optimizer.lr", "train seed-1-lr-1e-05.optimizer.lr"),
        ("train@seed=1~0123/loss", "train seed-1-0123/loss"),
    ],
)
def test_names_are_those_that_mlflow_takes(name: str, told: str):
    assert allowed(name) == told


def test_of_a_long_training_the_means_of_its_buckets_are_told(root: Path, tmp_path: Path):
    log = MetricLog(root / "runs" / RECORD["id"] / "metrics.jsonl", 0)
    for step in range(1, 3001):
        log.write({"step": step, "loss": float(step)})
    log.close()
    told = [each for each in lines_of(root, RECORD, tmp_path) if "train/loss" in each.get("metrics", {})]
    assert len(told) == 750
    assert told[0] == {"step": 4, "metrics": {"train/loss": 2.5}}


def test_how_busy_each_role_was_is_told_by_step(root: Path, tmp_path: Path):
    made = [noted(0.5, 1.0, count=30), noted(0.75, 1.0, count=30), noted(1.0, 1.0, "drafter", count=30)]
    write_usage(root / "runs" / RECORD["id"] / USAGE, made)
    told = [
        each for each in lines_of(root, RECORD, tmp_path) if any("usage" in name for name in each.get("metrics", ()))
    ]
    targets, drafters = ({"train/usage/target": 0.625}, {"train/usage/drafter": 1.0})
    assert told == [{"step": step, "metrics": metrics} for metrics in (targets, drafters) for step in range(1, 31)]
    (run,) = [
        each["metrics"] for each in lines_of(root, RECORD, tmp_path) if "run/train.loss" in each.get("metrics", ())
    ]
    assert (run["run/train.busy.target"], run["run/train.busy.drafter"]) == (0.62, 0.98)


def test_a_run_without_training_is_told_too(tmp_path: Path):
    (tmp_path / "runs" / OLD["id"]).mkdir(parents=True)
    (tmp_path / "runs" / OLD["id"] / "record.json").write_text(json.dumps(OLD))
    assert [next(iter(each)) for each in lines_of(tmp_path, OLD, tmp_path)] == ["run", "step", "artifacts"]


@pytest.mark.parametrize("to", PACKAGES)
def test_a_python_without_the_writer_is_one_line_with_the_cure(root: Path, tmp_path: Path, to: str):
    with pytest.raises(EnvironmentMismatch, match=rf"has no {to}; .*pip install {PACKAGES[to]}; then --python"):
        track(root, RECORD, to, str(tmp_path / "there"))
    assert not (tmp_path / "there" / RECORD["id"]).exists()


def test_an_interpreter_that_is_none_is_named(root: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"^--python /nonexistent: No such file or directory"):
        track(root, RECORD, "mlflow", str(tmp_path / "there"), "/nonexistent")


def test_a_writer_that_fails_says_why_and_leaves_nothing(root: Path, tmp_path: Path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho Traceback >&2\necho 'ValueError: no such store' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(DFlashError, match=r"^tensorboard, .*: ValueError: no such store$"):
        track(root, RECORD, "tensorboard", str(tmp_path / "there"), str(broken))
    assert list((tmp_path / "there").iterdir()) == []


def test_a_folder_that_holds_anything_else_is_never_replaced(root: Path, tmp_path: Path):
    writer = tmp_path / "python"
    writer.write_text('#!/bin/sh\ntouch "$4/events.out.tfevents.1"\n')
    writer.chmod(0o755)
    with pytest.raises(UsageError, match=rf"runs/{RECORD['id']}: export is there, .*; name another folder with --out"):
        track(root, RECORD, "tensorboard", str(root / "runs"), str(writer))
    assert (root / "runs" / RECORD["id"] / "record.json").exists()
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / RECORD["id"]).write_text("mine")
    with pytest.raises(UsageError, match="is there"):
        track(root, RECORD, "tensorboard", str(tmp_path / "boards"), str(writer))
    for _ in range(2):
        track(root, RECORD, "tensorboard", str(tmp_path / "others"), str(writer))
    assert [each.name for each in (tmp_path / "others" / RECORD["id"]).iterdir()] == ["events.out.tfevents.1"]


@pytest.fixture(scope="session")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An interpreter that has each package, from a package index."""
    made = {}
    for to, package in PACKAGES.items():
        folder = tmp_path_factory.mktemp(to)
        made[to] = str(folder / "venv" / "bin" / "python")
        for words in (["venv", "--python", sys.executable, "venv"], ["pip", "install", "--python", made[to], package]):
            done = uv(*words, cwd=folder)
            assert done.returncode == 0, done.stderr
    return made


def read(python: str, program: str, *words: str) -> Any:
    done = subprocess.run([python, "-c", program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
found.Reload()
print(json.dumps({name: [(each.step, each.value) for each in found.Scalars(name)] for name in found.Tags()["scalars"]}))
"""


@pytest.mark.nightly
def test_tensorboard_reads_what_its_writer_wrote(root: Path, tmp_path: Path, pythons: dict[str, str]):
    for _ in range(2):  # the second takes the place of the first
        track(root, RECORD, "tensorboard", str(tmp_path / "boards"), pythons["tensorboard"])
    found = read(pythons["tensorboard"], _TENSORBOARD, str(tmp_path / "boards" / RECORD["id"]))
    assert found["train/loss"] == [[step, pytest.approx(6 / step)] for step in range(1, 31)]
    assert found["run/acceptance_length"] == [[0, pytest.approx(2.41)]]


_MLFLOW = """
import json, os, sys
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow
client = mlflow.MlflowClient(tracking_uri=sys.argv[1])
experiment = client.get_experiment_by_name("local").experiment_id
print(json.dumps([{
    "name": run.info.run_name, "status": run.info.status, "took": run.info.end_time - run.info.start_time,
    "params": run.data.params, "tags": run.data.tags,
    "loss": [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "train/loss")],
    "files": sorted(each.path for folder in ("", "export") for each in client.list_artifacts(run.info.run_id, folder)),
} for run in client.search_runs([experiment], order_by=["tags.run"])]))
"""


@pytest.mark.nightly
def test_mlflow_takes_a_matrix_and_keeps_nothing_of_a_run_that_could_not_be_written(
    root: Path, tmp_path: Path, pythons: dict[str, str]
):
    plan = root / "runs" / RECORD["id"] / "plan.json"
    plan.write_text(json.dumps({"steps": [{"name": "train@seed=1", "config": {"lr": 0.002}}]}))
    steps = [{**each, "name": f"{each['name']}@seed=1"} for each in RECORD["steps"]]
    track(root, {**RECORD, "steps": steps}, "mlflow", str(tmp_path / "mlruns"), pythons["mlflow"])
    (found,) = read(pythons["mlflow"], _MLFLOW, (tmp_path / "mlruns").as_uri())
    assert found["params"] == {"train seed-1.lr": "0.002"}
    plan.write_text(json.dumps({"steps": [{"name": "train", "config": {"x" * 300: 1}}]}))
    with pytest.raises(DFlashError):
        track(root, RECORD, "mlflow", str(tmp_path / "mlruns"), pythons["mlflow"])
    assert len(read(pythons["mlflow"], _MLFLOW, (tmp_path / "mlruns").as_uri())) == 1


@pytest.mark.nightly
def test_mlflow_reads_what_its_client_wrote_to_a_file_store(root: Path, tmp_path: Path, pythons: dict[str, str]):
    for record in (RECORD, RECORD, load_record(root)):
        track(root, record, "mlflow", str(tmp_path / "mlruns"), pythons["mlflow"])
    first, second = read(pythons["mlflow"], _MLFLOW, (tmp_path / "mlruns").as_uri())
    assert (first["name"], second["name"]) == (RECORD["id"], "20261130T000000-local")
    assert (first["status"], first["took"]) == ("FINISHED", 312_400)
    assert first["params"] == {"train.optimizer.lr": "0.002"}
    assert (
        first["tags"].items() >= {"run": RECORD["id"], "commit": RECORD["commit"], "lock_id": RECORD["lock_id"]}.items()
    )
    assert first["loss"] == [[step, 6 / step] for step in range(1, 31)]
    assert first["files"] == ["export", "export/config.json", "record.json", "report.html"]


def test_a_real_run_is_told_whole(ran: Lab, tmp_path: Path):
    told = list(lines_of(ran.root, load_record(ran.root), tmp_path))
    assert [each["step"] for each in told if "train/loss" in each.get("metrics", {})] == [0, 1, 2, 3, 4]
    assert told[0]["params"]["train.optimizer.lr"] == "0.001"
