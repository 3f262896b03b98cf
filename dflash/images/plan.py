"""What a build will do, as data: the words for BuildKit follow from the plan alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash.environments.lock import Lock
from dflash.environments.spec import EnvironmentSpec
from dflash.images.bases import Base, Image
from dflash.images.context import Revision

Network = Literal["default", "none", "host"]


@dataclass(frozen=True)
class Ground:
    """What an image is built on: where it can be had, in the order to try, all with one digest; a name for people;
    and what is installed on it, from which archive."""

    references: tuple[str, ...]
    name: str
    digest: str
    packages: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """One image to build. `epoch` is seconds since 1970; `secret` a file with settings for the index, or None."""

    dockerfile: Path
    environment: str
    ground: Ground
    arguments: Mapping[str, str]
    epoch: int
    tag: str
    network: Network
    wheels: Path | None = None
    secret: Path | None = None

    @property
    def name(self) -> str:
        """The name that the engine gets for it. It is in no manifest."""
        return f"dflash/{self.environment}:{self.tag}"


def ground_of(base: Base) -> Ground:
    """What a base of bases.yaml is to a build."""
    references = tuple(f"{each}@{base.digest}" for each in (base.repository, *base.mirrors))
    return Ground(references, f"{base.repository}:{base.release}", base.digest, base.packages, base.sources)


def make_plan(
    *,
    dockerfile: Path,
    image: Image,
    ground: Ground,
    spec: EnvironmentSpec,
    lock: Lock,
    revision: Revision,
    wheels: Path | None,
    secret: Path | None,
    network: Network | None = None,
) -> Plan:
    """The plan. Without `network`, steps have one only when they fetch something."""
    # On PyTorch's own indexes every version says its backend; where the lock's does not, torch is a file like others.
    options = f"--torch-backend {spec.torch_backend}" if "+" in spec.torch else ""
    arguments = {
        "FILES": "wheels" if wheels else "index",
        "PYTHON": spec.python,
        "PACKAGES": " ".join(ground.packages),
        "SOURCES": "\n".join(ground.sources),
        "INDEX_OPTIONS": "" if wheels else options,
        "ENVIRONMENT": image.environment,
        "LOCK": lock.id,
        "COMMIT": revision.commit,
        "DIRTY": "true" if revision.changed else "false",
        "BASE_NAME": ground.name,
        "BASE_DIGEST": ground.digest,
    }
    fetches = bool(ground.packages) or wheels is None
    return Plan(
        dockerfile=dockerfile,
        environment=image.environment,
        ground=ground,
        arguments=arguments,
        epoch=revision.epoch,
        tag=revision.commit[:12],
        network=network or ("default" if fetches else "none"),
        wheels=wheels,
        secret=secret,
    )


def words_for(plan: Plan, base: str, context: Path, tar: Path, *, cached: bool) -> list[str]:
    """What follows `docker buildx build`. One output, no provenance: both would change with the time of the build."""
    words = ["--file", str(plan.dockerfile), "--provenance=false", "--sbom=false", f"--network={plan.network}"]
    words += [] if cached else ["--no-cache"]
    for key, value in {"SOURCE_DATE_EPOCH": str(plan.epoch), "BASE": base, **plan.arguments}.items():
        words += ["--build-arg", f"{key}={value}"]
    if plan.wheels:
        words += ["--build-context", f"wheels={plan.wheels}"]
    if plan.secret:
        words += ["--secret", f"id=index,src={plan.secret}"]
    words += ["--output", f"type=oci,dest={tar},rewrite-timestamp=true,name=docker.io/{plan.name}"]
    return [*words, str(context)]
