"""A program run in an image through the docker SDK, with the engine of this machine or of any host."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator, Sequence

from docker.client import DockerClient
from docker.errors import APIError, DockerException, NotFound
from docker.models.images import Image
from docker.types import LogConfig
from requests.exceptions import RequestException

from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.images.engine import registry_failure
from dflash.images.failures import EngineMissing, ImageError, WrongDigest
from dflash.images.forward import forwarded

PATIENCE_S = 3600
PLACE = "/tmp/dflash-inside.pyz"


@contextlib.contextmanager
def engine_of(host: Host) -> Iterator[DockerClient]:
    """A client of the host's engine: this machine's by its own settings, another's through the chain.

    Raises:
        EngineMissing: none answers.
        HostError: the host can not be reached.
    """
    with contextlib.ExitStack() as last:
        where = "local" if host.chain.is_local else str(host.chain)
        try:
            if host.chain.is_local:
                client = DockerClient.from_env(timeout=PATIENCE_S)
            else:
                socket = last.enter_context(forwarded(last.enter_context(reach(host.chain))))
                client = DockerClient(f"unix://{socket}", timeout=PATIENCE_S)
        except DockerException as failure:
            cure = "start it, or set DOCKER_HOST"
            raise EngineMissing(f"no Docker engine answers: {failure}", where=where, cure=cure) from failure
        last.callback(client.close)
        yield client


def pull(client: DockerClient, repository: str, digest: str) -> Image:
    """The image of that digest, from its registry if the engine has it not.

    Raises:
        RegistryFailed: the registry is down, or has no such image.
        WrongDigest: it gave other bytes.
        StorageError: the engine's disk is full.
    """
    reference = f"{repository}@{digest}"
    try:
        # images.pull() reads past what goes wrong once the answer has begun.
        for said in client.api.pull(repository, tag=digest, stream=True, decode=True):
            if "error" in said:
                raise registry_failure(str(said["error"]), reference)
        image = client.images.get(reference)
    except (DockerException, RequestException) as failure:
        told = failure.explanation if isinstance(failure, APIError) and failure.explanation else failure
        raise registry_failure(str(told), reference) from failure
    named = {each.partition("@")[2] for each in image.attrs.get("RepoDigests") or ()} | {image.id}
    if digest not in named:
        raise WrongDigest(f"the engine has {image.id} under that name", where=reference)
    return image


def run_inside(client: DockerClient, image: Image, program: bytes, arguments: Sequence[str]) -> bytes:
    """What a one-file program prints, run by the image's own python3 as the image's own user, with no network.

    The container is gone afterwards. Raises ImageError when the program fails.
    """
    # -S: nothing that the environment has runs before it is read.
    entrypoint = ["/opt/env/bin/python", "-ISB", PLACE, *arguments]
    with _talking():
        container = client.containers.create(
            image,
            entrypoint=entrypoint,
            command=[],
            network_mode="none",
            working_dir="/",
            # Whatever the engine's default is: what is printed has to come back whole.
            log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "1g"}),
        )
        try:
            container.put_archive("/", _tar(PLACE.lstrip("/"), program))
            container.start()
            status = container.wait()["StatusCode"]
            printed: bytes = container.logs(stdout=True, stderr=False)
            if status:
                said = container.logs(stdout=False, stderr=True).decode(errors="replace").strip().splitlines()
                raise ImageError(f"it can not be read from inside: {said[-1] if said else f'status {status}'}")
            return printed
        finally:
            with contextlib.suppress(NotFound):
                container.remove(force=True)


@contextlib.contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except APIError as failure:
        raise ImageError(f"the engine refused: {failure.explanation or failure}") from failure
    except (DockerException, RequestException) as failure:
        raise ImageError(f"the engine was lost: {failure}") from failure


def _tar(name: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as files:
        about = tarfile.TarInfo(name)
        about.size, about.mode = len(data), 0o444
        files.addfile(about, io.BytesIO(data))
    return packed.getvalue()
