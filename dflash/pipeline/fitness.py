"""Whether a host is fit for a pipeline: looked at before anything is sent there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dflash.errors import EnvironmentMismatch
from dflash.hosts.inventory import Host
from dflash.pipeline.machines import layouts_of, works_here
from dflash.pipeline.plan import gpus_for
from dflash.pipeline.schema import Pipeline
from dflash.provision.checking import check_host


def require_fit(host: Host, pipeline: Pipeline, hosts: Mapping[str, Host]) -> None:
    """Check every layer on the way to a host, and that it has the GPUs that `pipeline`, which names `hosts`, asks for.
    The environment is not looked at: the run's own is made or found next, and compared with its lock by the pipeline's
    check step.

    Raises:
        EnvironmentMismatch: something is wrong; names the first layer.
        HostError: the host can not be reached.
    """
    found = check_host(replace(host, gpus=max(host.gpus, gpus_of(pipeline, hosts))), environments=False)
    wrong = [each for each in found.findings if each.severity == "block"]
    if wrong:
        first = wrong[0]
        others = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        see = f"./inv check --host {host.name} shows the whole"
        cure = f"{first.cure}; {see}" if first.cure else see
        raise EnvironmentMismatch(
            f"{first.subject}: {first.found}{others}", where=f"{host.name}, {first.layer}", cure=cure
        )


def gpus_of(pipeline: Pipeline, hosts: Mapping[str, Host]) -> int:
    """How many GPUs of the run's machine its steps use at once."""
    layouts = layouts_of(pipeline, hosts)
    return max((gpus_for(step, pipeline, layouts) for step in pipeline.steps if works_here(step)), default=0)
