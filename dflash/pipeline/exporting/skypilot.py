"""A task of SkyPilot (docs.skypilot.co, reference/yaml-spec): `sky launch FILE`, or `sky jobs launch FILE`.

SkyPilot has no limit of time for a task, and restarts a managed job whose machine is lost by itself: the limits and
retries of steps are the runner's, inside.
"""

from __future__ import annotations

from typing import Any

from dflash.errors import UsageError
from dflash.pipeline.exporting.needs import FILE, PROJECT, PYTHON, ROOT, check_image, check_volume, needs_of
from dflash.pipeline.provenance.image import VARIABLE
from dflash.pipeline.schema import Pipeline

RUN = """\
cd "$DFLASH_PROJECT"
exec "$DFLASH_PYTHON" -m dflash train --pipeline "$DFLASH_PIPELINE" --root "$DFLASH_ROOT"
"""
"""The same for all pipelines."""


def task(pipeline: Pipeline, image: str, volume: str, gpu: str) -> dict[str, Any]:
    """The task that runs `pipeline` from `image` (REPOSITORY@sha256:…) on a GPU type as SkyPilot names it, such as
    H200; what a run keeps is on the volume of that name. Secrets are asked for at the launch (`--secret NAME`).

    Raises UsageError: something of the pipeline is another machine's, or the image, the volume, or the GPU's type, is
    not named.
    """
    check_image(image)
    check_volume(volume)
    needs = needs_of(pipeline)
    resources: dict[str, Any] = {"image_id": f"docker:{image}"}
    if needs.gpus and not gpu:
        cure = "name it as SkyPilot does: --gpu H200"
        raise UsageError(f"it needs {needs.gpus} GPUs, and SkyPilot their type", where=pipeline.file, cure=cure)
    if needs.gpus:
        resources["accelerators"] = f"{gpu}:{needs.gpus}"
    variables = {"DFLASH_PROJECT": PROJECT, "DFLASH_PYTHON": PYTHON, "DFLASH_PIPELINE": FILE, "DFLASH_ROOT": ROOT}
    variables[VARIABLE] = image
    made: dict[str, Any] = {
        "name": needs.name,
        "num_nodes": 1,
        "resources": resources,
        "file_mounts": {FILE: pipeline.file},
        "volumes": {ROOT: volume},
        "envs": variables,
    }
    if needs.secrets:
        made["secrets"] = dict.fromkeys(needs.secrets)
    return {**made, "run": RUN}
