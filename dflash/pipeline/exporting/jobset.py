"""A JobSet of Kubernetes (jobset.sigs.k8s.io, v1alpha2), and the ConfigMap with the pipeline's file: `kubectl apply`.

The limits and retries of steps are the runner's, inside. A pod that is lost with its node is another matter: the JobSet
is restarted as often as the steps' `retry` has attempts for a lost connection, and goes on from what is on the volume.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dflash.pipeline.exporting.needs import FILE, PROJECT, PYTHON, ROOT, Needs, check_image, check_volume, needs_of
from dflash.pipeline.provenance.image import VARIABLE
from dflash.pipeline.schema import Pipeline

_USER = 10001
"""The image's (docker/train.Dockerfile)."""

_KILLED = [137, 143]
"""The exit statuses of a container that was killed, as one is whose node is emptied."""

_MARGIN_S = 60
"""How long a pod has after SIGTERM besides what the runner gives to its steps."""

_LONGEST = 40
"""Of a name, to which Kubernetes adds words until it names a pod."""


def documents(pipeline: Pipeline, image: str, volume: str, secret: str) -> list[dict[str, Any]]:
    """The documents that run `pipeline` from `image` (REPOSITORY@sha256:…). What a run keeps is on the volume that is
    claimed as `volume`. The values of its secrets are the keys of the Secret `secret`, which has to be there; "": it is
    called as the pipeline is.

    Raises UsageError: something of the pipeline is another machine's, the image is not named by its digest, or the
    volume not at all.
    """
    check_image(image)
    check_volume(volume)
    needs = needs_of(pipeline)
    name = needs.name.replace("_", "-")[:_LONGEST].strip("-")
    text = Path(pipeline.file).read_text(encoding="utf-8")
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {Path(FILE).name: text}},
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": {
                    "maxRestarts": needs.restarts,
                    "rules": [
                        {
                            "name": "theRunnerFailed",
                            "action": "FailJobSet",
                            "onJobFailureReasons": ["PodFailurePolicy"],
                        }
                    ],
                },
                "replicatedJobs": [
                    {
                        "name": "run",
                        "replicas": 1,
                        "template": {"spec": _job(needs, name, image, volume, secret or name)},
                    }
                ],
            },
        },
    ]


def _job(needs: Needs, name: str, image: str, volume: str, secret: str) -> dict[str, Any]:
    failed = {"containerName": "dflash", "operator": "NotIn", "values": _KILLED}
    return {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": failed}]},
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": round(needs.patience_s) + _MARGIN_S,
                "securityContext": {"runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER},
                "containers": [_container(needs, image, secret)],
                "volumes": [
                    {"name": "root", "persistentVolumeClaim": {"claimName": volume}},
                    {"name": "pipeline", "configMap": {"name": name}},
                    {"name": "shm", "emptyDir": {"medium": "Memory"}},  # NCCL's, for which 64 MB are too little
                ],
            }
        },
    }


def _container(needs: Needs, image: str, secret: str) -> dict[str, Any]:
    words = [PYTHON, "-m", "dflash", "train", "--pipeline", FILE, "--root", ROOT]
    made: dict[str, Any] = {"name": "dflash", "image": image, "command": words, "workingDir": PROJECT}
    if needs.gpus:
        made["resources"] = {"limits": {"nvidia.com/gpu": str(needs.gpus)}}
    made["env"] = [
        {"name": VARIABLE, "value": image},
        *({"name": each, "valueFrom": {"secretKeyRef": {"name": secret, "key": each}}} for each in needs.secrets),
    ]
    mounts = {"root": ROOT, "pipeline": str(Path(FILE).parent), "shm": "/dev/shm"}
    made["volumeMounts"] = [{"name": volume, "mountPath": place} for volume, place in mounts.items()]
    return made
