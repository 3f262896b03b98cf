"""A pipeline as another engine's YAML: what is expected to the letter, and what the engines' own packages say of it.

Neither was ever run by its engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash.errors import UsageError
from dflash.pipeline.exporting import jobset, skypilot
from dflash.pipeline.exporting.writing import written
from dflash.pipeline.launchers.config import Slurm, Torchrun
from dflash.pipeline.policy import Limits, Retry
from dflash.pipeline.schema import Pipeline, load_pipeline
from dflash.pipeline.steps import KINDS

DATA = Path(__file__).parents[2] / "data" / "exported"
IMAGE = f"registry.example/dflash@sha256:{'0123456789abcdef' * 4}"


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """One whose training names a secret, and is worth two retries."""
    monkeypatch.chdir(DATA)
    return changed(load_pipeline("pipeline.yaml", KINDS), secrets=("HF_TOKEN",), retry=Retry(3))


def changed(pipeline: Pipeline, **changes: Any) -> Pipeline:
    """With another training step."""
    steps = [replace(step, **changes) if step.name == "train" else step for step in pipeline.steps]
    return replace(pipeline, steps=tuple(steps))


def as_task(pipeline: Pipeline, image: str = IMAGE, gpu: str = "H200") -> dict[str, Any]:
    return skypilot.task(pipeline, image, "dflash", gpu)


def as_jobset(pipeline: Pipeline, image: str = IMAGE) -> list[dict[str, Any]]:
    return jobset.documents(pipeline, image, "dflash", "tokens")


def test_a_skypilot_task_is_as_expected(pipeline: Pipeline):
    assert written([as_task(pipeline)], "skypilot") == (DATA / "skypilot.yaml").read_text()


def test_a_jobset_is_as_expected(pipeline: Pipeline):
    assert written(as_jobset(pipeline), "jobset") == (DATA / "jobset.yaml").read_text()


def test_the_file_is_in_the_config_map_to_the_byte():
    config_map, _ = yaml.safe_load_all((DATA / "jobset.yaml").read_text())
    assert config_map["data"] == {"pipeline.yaml": (DATA / "pipeline.yaml").read_text()}


def test_secrets_are_named_and_their_values_are_nowhere(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "not-to-be-seen")
    for document in (as_task(pipeline), as_jobset(pipeline)):
        text = yaml.safe_dump(document)
        assert "HF_TOKEN" in text
        assert "not-to-be-seen" not in text


def test_what_runs_in_skypilots_shell_is_the_same_for_all_pipelines(pipeline: Pipeline):
    other = replace(pipeline, name="other", file="$(reboot).yaml")
    assert as_task(other)["run"] == as_task(pipeline)["run"]


def test_a_pipeline_without_gpus_asks_for_none(pipeline: Pipeline):
    step = pipeline.step("train")
    on_cpu = changed(pipeline, config=replace(step.config, device="cpu"))
    assert "accelerators" not in as_task(on_cpu, gpu="")["resources"]
    assert "nvidia.com/gpu" not in yaml.safe_dump(as_jobset(on_cpu))


def test_a_lost_machine_is_retried_only_where_a_step_is(pipeline: Pipeline):
    def restarts(pipeline: Pipeline) -> int:
        return as_jobset(pipeline)[1]["spec"]["failurePolicy"]["maxRestarts"]

    assert restarts(pipeline) == 2
    assert restarts(changed(pipeline, retry=Retry(3, on=("memory",)))) == 0


def test_a_pod_has_the_time_that_its_steps_have_after_a_stop(pipeline: Pipeline):
    def grace_s(pipeline: Pipeline) -> int:
        (job,) = as_jobset(pipeline)[1]["spec"]["replicatedJobs"]
        return job["template"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

    assert grace_s(pipeline) == 180
    assert grace_s(changed(pipeline, is_last=True, limits=Limits(600.0))) == 180 + 600 + 120


@pytest.mark.parametrize("export", [as_task, as_jobset])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"host": "gpu1"}, r"pipeline\.yaml: step train: it runs on gpu1, which the engine does not know"),
        ({"launcher": Slurm(nodes=2)}, "step train: its launcher names machines of its own"),
        ({"launcher": Torchrun(hosts=("a", "b"))}, "step train: its launcher names machines of its own"),
    ],
)
def test_what_names_machines_is_refused(pipeline: Pipeline, export: Callable[..., Any], changes: dict, said: str):
    with pytest.raises(UsageError, match=said):
        export(changed(pipeline, **changes))


@pytest.mark.parametrize("export", [as_task, as_jobset])
def test_a_path_of_this_machine_is_refused(pipeline: Pipeline, export: Callable[..., Any]):
    config = replace(pipeline.step("train").config, start="drafts/one")
    with pytest.raises(UsageError, match="step train: start is 'drafts/one', a path of this machine"):
        export(changed(pipeline, config=config))


@pytest.mark.parametrize("export", [as_task, as_jobset])
def test_inputs_of_this_machine_are_refused(pipeline: Pipeline, export: Callable[..., Any]):
    export(changed(pipeline, inputs=("/work/run.sh",)))
    with pytest.raises(UsageError, match=r"step train: inputs is 'scripts/run\.sh', a path of this machine"):
        export(changed(pipeline, inputs=("/work/run.sh", "scripts/run.sh")))


def test_a_volume_without_a_name_is_refused(pipeline: Pipeline):
    for export in (
        lambda: skypilot.task(pipeline, IMAGE, "", "H200"),
        lambda: jobset.documents(pipeline, IMAGE, "", ""),
    ):
        with pytest.raises(UsageError, match="--volume: it has no name; name the volume"):
            export()


@pytest.mark.parametrize("export", [as_task, as_jobset])
@pytest.mark.parametrize("image", ["dflash:latest", "dflash", IMAGE[:-1], f"{IMAGE} --privileged"])
def test_an_image_without_a_digest_is_refused(pipeline: Pipeline, export: Callable[..., Any], image: str):
    with pytest.raises(UsageError, match="is no image by its digest"):
        export(pipeline, image)


def test_skypilot_has_to_be_told_the_type_of_gpus(pipeline: Pipeline):
    with pytest.raises(UsageError, match="it needs 8 GPUs, and SkyPilot their type; name it"):
        as_task(pipeline, gpu="")


SKYPILOT = """
import sys, sky, yaml
task = sky.Task.from_yaml_config(yaml.safe_load(open(sys.argv[1])), secrets_overrides=[("HF_TOKEN", "given")])
(resources,) = task.resources
print(task.num_nodes, resources.accelerators, resources.extract_docker_image(), sorted(task.secrets))
"""

JOBSET = """
import sys, yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
_, document = yaml.safe_load_all(open(sys.argv[1]))
assert JobsetV1alpha2JobSet.from_dict(document).to_dict() == document, "a field that JobSet does not know is lost"
print(document["kind"])
"""


def asked(package: str, program: str, document: str, tmp_path: Path) -> str:
    """What a package's own reading of a file says, in an environment made for it."""
    uv = [sys.executable, "-m", "uv", "run", "--quiet", "--no-project", "--python", sys.executable]
    words = [*uv, "--with", package, "python", "-c", program, str(DATA / document)]
    home = {"UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv")), "HOME": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, **home}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.nightly
def test_skypilots_own_package_takes_the_task(tmp_path: Path):
    said = asked("skypilot==0.14.1", SKYPILOT, "skypilot.yaml", tmp_path)
    assert said.splitlines()[-1] == f"1 {{'H200': 8}} {IMAGE} ['HF_TOKEN']"


@pytest.mark.nightly
def test_the_trainers_models_of_jobset_know_each_field(tmp_path: Path):
    """kubeflow-trainer-api carries JobSet's, made from its OpenAPI description."""
    words = asked("kubeflow-trainer-api==2.3.0", JOBSET, "jobset.yaml", tmp_path)
    assert words == "JobSet"
