"""What is wrong with an engine, a disk or a registry is one line that says what, where and what to do."""

from __future__ import annotations

import contextlib
import gc
import http.server
import json
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tenacity import wait_none

from dflash.errors import StorageError, UsageError
from dflash.hosts.inventory import find_host
from dflash.images import engine as engine_room
from dflash.images.build import Wish, build
from dflash.images.engine import failure_of, find_engine
from dflash.images.failures import BaseMissing, BuildFailed, EngineMissing, RegistryFailed, StoreBusy, WrongDigest
from dflash.images.verify import verify_image
from tests.images.lab import BASE, commit
from tests.lab.buildkit import Engine
from tests.lab.docker import docker_container
from tests.lab.service import free_port
from tests.mounts import small_file_system

LOCAL = find_host("local", "hosts.yaml")
NO_IMAGE = "sha256:" + "0" * 64


def test_a_machine_without_docker_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match="there is no program docker here; install Docker 26 or newer"):
        find_engine()


# The SDK leaves the socket to the collector when nobody answers.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_docker_without_an_engine_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    if not shutil.which("docker"):
        pytest.skip("the lab lacks docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(EngineMissing, match=r"no Docker engine answers: .*nobody.sock.*; start it, or set DOCKER_HOST"):
        find_engine()
    with pytest.raises(EngineMissing, match=r"local: no Docker engine answers: .*; start it, or set DOCKER_HOST"):
        verify_image(f"some/image@{NO_IMAGE}", LOCAL, tmp_path, tmp_path)
    gc.collect()


def test_an_image_by_a_tag_is_not_verified(tmp_path: Path):
    with pytest.raises(UsageError, match="'some/image:1' is not an image by its digest"):
        verify_image("some/image:1", LOCAL, tmp_path, tmp_path)


@pytest.mark.nightly
def test_an_engine_without_buildx_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(EngineMissing, match=r"docker has no buildx here; install it \(Debian"):
        find_engine()


@pytest.mark.nightly
def test_an_engine_whose_store_keeps_no_digest_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    said = r"Docker 20\S+: the image store of this engine \(\w+\) keeps no manifest digest"
    with docker_container(), pytest.raises(EngineMissing, match=said):  # Debian's own, with a newer client
        find_engine()
    monkeypatch.setenv("DOCKER_HOST", engine.environment["DOCKER_HOST"])
    assert find_engine().version.startswith("2")


@pytest.mark.nightly
def test_a_full_disk_for_the_tar_is_named(engine: Engine, project: Path, tmp_path: Path, wheels: Path):
    with small_file_system(tmp_path / "small", "80m") as small:
        with pytest.raises(StorageError, match="No space left on device; free space"):
            build(Wish("small", base=BASE, wheels=wheels), project, small)
        assert not list((small / "build" / "small").iterdir())


@pytest.mark.nightly
def test_a_full_disk_of_the_engine_is_named(engine: Engine, project: Path, tmp_path: Path, wheels: Path):
    file = project / "docker" / "train.Dockerfile"
    full = "RUN --mount=type=tmpfs,target=/full,size=1048576 head -c 2000000 /dev/zero > /full/file\n"
    file.write_text(file.read_text().replace("COPY project/", f"{full}COPY project/"))
    commit(project)
    with pytest.raises(StorageError, match=r"No space left on device; free space there: `docker system df`"):
        build(Wish("small", base=BASE, wheels=wheels), project, tmp_path)


@pytest.mark.nightly
def test_a_base_that_can_not_be_pulled_is_named_with_where_it_was_looked_for(
    engine: Engine, project: Path, tmp_path: Path, wheels: Path
):
    (project / "docker" / "bases.yaml").write_text(
        f"gone:\n  repository: localhost:{free_port()}/some/image\n  release: '1'\n  digest: {NO_IMAGE}\n"
        f"  mirrors: [localhost:{free_port()}/other]\n"
    )
    with pytest.raises(BaseMissing) as raised:
        build(Wish("small", base="gone", wheels=wheels), project, tmp_path)
    said = str(raised.value)
    assert "(tried localhost:" in said
    assert "/some/image and localhost:" in said
    assert "the base can not be pulled: " in said
    assert "connection refused" in said
    assert said.endswith("; take an image that is here with --base")


@pytest.mark.nightly
def test_a_base_is_taken_from_a_mirror_where_its_own_registry_is_down(
    engine: Engine, address: str, project: Path, tmp_path: Path, wheels: Path
):
    engine.run("tag", BASE, f"{address}/base:lab")
    engine.run("push", f"{address}/base:lab")
    digest = engine.run("image", "inspect", "--format", "{{.Id}}", BASE).stdout.strip()
    down = f"localhost:{free_port()}/base"
    (project / "docker" / "bases.yaml").write_text(
        f"mirrored:\n  repository: {down}\n  release: '1'\n  digest: {digest}\n  mirrors: [{address}/base]\n"
    )
    built = build(Wish("small", base="mirrored", wheels=wheels), project, tmp_path)
    assert built.record["base"] == {"name": f"{down}:1", "digest": digest, "reference": f"{address}/base@{digest}"}


@pytest.mark.nightly
def test_a_registry_that_is_down_is_named(engine: Engine, project: Path, tmp_path: Path, wheels: Path):
    down = f"127.0.0.1:{free_port()}/small"
    with pytest.raises(RegistryFailed, match=rf"{down}:\S+: the registry can not be reached: .*connection refused"):
        build(Wish("small", base=BASE, wheels=wheels, push=down), project, tmp_path)
    with pytest.raises(RegistryFailed, match=rf"{down}@{NO_IMAGE}: the registry can not be reached: .*refused"):
        verify_image(f"{down}@{NO_IMAGE}", LOCAL, project, tmp_path)


@pytest.mark.nightly
def test_a_registry_without_the_image_is_named(engine: Engine, address: str, project: Path, tmp_path: Path):
    with pytest.raises(RegistryFailed, match=r": the registry does not have it; check the name and the digest"):
        verify_image(f"{address}/nothing@{NO_IMAGE}", LOCAL, project, tmp_path)


@pytest.mark.nightly
def test_a_registry_that_gives_other_bytes_is_named(
    engine: Engine, address: str, project: Path, tmp_path: Path, wheels: Path
):
    (project / "only-here").write_text("an image that no other test makes\n")
    commit(project)
    built = build(Wish("small", base=BASE, wheels=wheels, push=f"{address}/true"), project, tmp_path)
    for name in (f"{address}/true", "dflash/small"):  # what the engine has it does not fetch
        engine.run("image", "rm", "--force", f"{name}:{built.record['commit'][:12]}")
    with lying_registry(address) as liar, pytest.raises(WrongDigest, match="the registry gave other bytes"):
        verify_image(f"{liar}/true@{built.digest}", LOCAL, project, tmp_path)


@contextlib.contextmanager
def lying_registry(address: str) -> Iterator[str]:
    """A registry in front of another, whose manifests have a key more than those that were asked for."""

    class Liar(http.server.BaseHTTPRequestHandler):
        default_request_version = "HTTP/1.1"  # the engine tries TLS first, and knows a plain server by its answer

        def do_GET(self) -> None:
            request = urllib.request.Request(f"http://{address}{self.path}", headers=dict(self.headers))
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                with opener.open(request) as answer:
                    status, headers, body = answer.status, dict(answer.headers), answer.read()
            except urllib.error.HTTPError as failure:
                status, headers, body = failure.code, dict(failure.headers), failure.read()
            if "/manifests/" in self.path and status == 200:
                body = json.dumps({**json.loads(body), "annotations": {"a": "lie"}}).encode()
                headers.pop("Docker-Content-Digest", None)
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


PROGRESS = """\
#8 [tools 2/2] RUN sh /run/tools/packages.sh
#8 DONE 0.1s
#9 [environment-wheels 1/1] RUN --network=none sh /run/tools/environment.sh --no-index
#9 0.757 error: Failed to create virtual environment
#9 0.757
#9 0.757 hint: Use the `--clear` flag
#9 0.760 {own}
#9 ERROR: process "/bin/sh -c sh /run/tools/environment.sh" did not complete successfully: exit code: 1
------
 > [environment-wheels 1/1] RUN --network=none sh /run/tools/environment.sh --no-index:
------
ERROR: failed to build: failed to solve: process "/bin/sh -c sh x" did not complete successfully: exit code: 1
"""


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("dflash: the base has no gcc", "the base has no gcc"),
        (
            "dflash: no; lines above",
            "no; lines above (error: Failed to create virtual environment hint: Use the `--clear` flag)",
        ),
        ("the end", "hint: Use the `--clear` flag the end"),
    ],
)
def test_what_a_failed_step_said_last_is_told(own: str, said: str):
    failure = failure_of(PROGRESS.replace("{own}", own).splitlines())
    assert isinstance(failure, BuildFailed)
    assert str(failure) == f"step environment-wheels 1/1: {said}"


def test_a_failure_before_any_step_is_buildkit_s_own_word():
    failure = failure_of(["#1 [internal] load build definition", "ERROR: failed to build: dockerfile parse error"])
    assert str(failure) == "dockerfile parse error"


LOCKED = """#13 exporting to oci image format
#13 ERROR: mount callback failed on /tmpmounts/containerd-mount42: failed to open writer: ref moby/1/lxsr locked for 8ms
ERROR: failed to build: failed to solve: mount callback failed on /tmpmounts/mount42: failed to open writer: \
ref moby/1/lxsr locked for 8.823831ms (since 2026-11-29 21:37:22.438433385 +0000 UTC m=+42.734252906): unavailable
"""


def test_a_store_that_was_locked_for_a_moment_is_worth_another_try():
    assert isinstance(failure_of(LOCKED.splitlines()), StoreBusy)


def test_a_build_is_tried_again_when_the_store_was_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A docker that fails so once, then builds."""
    program = tmp_path / "docker"
    script = f"""#!/bin/sh
if [ ! -e {tmp_path}/tried ]; then touch {tmp_path}/tried; cat {tmp_path}/locked >&2; exit 1; fi
echo '{{"containerimage.digest": "sha256:1"}}' > {tmp_path}/metadata
"""
    (tmp_path / "locked").write_text(LOCKED)
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(engine_room.build.retry, "wait", wait_none())
    assert engine_room.build(["."], tmp_path / "metadata") == "sha256:1"
