"""Write a run to MLflow's tracking: PYTHON to_mlflow.py URI, told what tracking.py says.

An experiment has the pipeline's name. A run that was written before is deleted once the new one is whole.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

_AT_ONCE = 1000
"""Metrics that MLflow takes in one call."""

_STATES = {"ok": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}


def main() -> int:
    """Write the run; 3 where MLflow is not installed."""
    # MLflow asks for this word of those who want files and no database.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    try:
        import mlflow  # type: ignore[import-not-found]
        from mlflow.entities import Metric, Param  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        return 3
    told = json.loads(sys.stdin.readline())
    client = mlflow.MlflowClient(tracking_uri=sys.argv[1])
    found = client.get_experiment_by_name(told["pipeline"])
    experiment = found.experiment_id if found else client.create_experiment(told["pipeline"])
    former = client.search_runs([experiment], filter_string=f"tags.run = '{told['run']}'")
    began, ended = int(told["started"] * 1000), int(told["ended"] * 1000)
    tags = {**told["tags"], "run": told["run"]}
    run = client.create_run(experiment, start_time=began, tags=tags, run_name=told["run"]).info.run_id
    try:
        write(client, run, told, Metric, Param)
    except BaseException:
        client.delete_run(run)
        raise
    client.set_terminated(run, _STATES[told["status"]], ended)
    for each in former:
        client.delete_run(each.info.run_id)
    return 0


def write(client: Any, run: str, told: Any, metric: Any, param: Any) -> None:
    """Write the settings of a run, and what follows on standard input; `metric` and `param` make what MLflow takes."""
    ended = int(told["ended"] * 1000)
    for name, value in told["params"].items():
        client.log_batch(run, params=[param(allowed(name), value[:6000])])
    waiting: list[Any] = []
    for line in map(json.loads, sys.stdin):
        metrics = [metric(allowed(name), value, ended, line["step"]) for name, value in line.get("metrics", {}).items()]
        if len(waiting) + len(metrics) > _AT_ONCE:
            client.log_batch(run, metrics=waiting)
            waiting = []
        waiting += metrics
        for name, path in line.get("artifacts", {}).items():
            if os.path.isdir(path):
                client.log_artifacts(run, path, allowed(name))
            else:
                client.log_artifact(run, path)
    client.log_batch(run, metrics=waiting)


def allowed(name: str) -> str:
    """A name as MLflow takes it: `train@seed=1/loss` as `train seed-1/loss`."""
    return re.sub(r"[^\w\-. :/]", "-", name.replace("@", " "), flags=re.ASCII)


if __name__ == "__main__":
    sys.exit(main())
