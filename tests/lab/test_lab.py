"""What the lab's build engine and registry do, which the image room relies on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.lab.buildkit import Engine, buildkit
from tests.lab.registry import registry

pytestmark = pytest.mark.nightly

BASE = "dflash-lab:bookworm"
SDK = """
import docker, sys
engine = docker.from_env()
image = engine.images.pull(*sys.argv[1].split("@"))
print(image.id, engine.containers.run(image, ["cat", "/made"], network_mode="none", remove=True).decode().strip())
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with buildkit() as running:
        running.base_image(BASE)
        yield running


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with registry() as running:
        yield running


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "file").write_text("copied\n")
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nCOPY file /file\nRUN cp /file /made && echo made >> /made\n")
    return folder


def build(engine: Engine, context: Path, output: str, *words: str) -> str:
    """Build without the cache, with times of 2023; the digest of the image's manifest."""
    metadata = context.parent / "metadata.json"
    always = ["--no-cache", "--provenance=false", "--network=none", "--build-arg", "SOURCE_DATE_EPOCH=1700000000"]
    engine.run("buildx", "build", *always, "--metadata-file", str(metadata), "--output", output, *words, str(context))
    return json.loads(metadata.read_text())["containerimage.digest"]


def oci(path: Path, **more: str) -> str:
    return ",".join([f"type=oci,dest={path},rewrite-timestamp=true", *(f"{key}={more[key]}" for key in more)])


def stored(engine: Engine, name: str) -> str:
    """The digest under which the engine has an image."""
    return engine.run("image", "inspect", "--format", "{{.Id}}", name).stdout.strip()


def test_two_builds_without_a_cache_give_the_same_bytes(engine: Engine, context: Path, tmp_path: Path):
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    assert build(engine, context, oci(first)) == build(engine, context, oci(second))
    assert first.read_bytes() == second.read_bytes()


def test_without_rewritten_times_they_do_not(engine: Engine, context: Path, tmp_path: Path):
    output = f"type=oci,dest={tmp_path / 'image.tar'}"
    assert build(engine, context, output) != build(engine, context, output)


def test_the_engines_own_store_refuses_rewritten_times_and_keeps_the_name(engine: Engine, context: Path):
    with pytest.raises(AssertionError, match='"rewrite-timestamp" conflicts with "unpack"'):
        build(engine, context, "type=image,name=refused:lab,rewrite-timestamp=true")
    assert engine.run("image", "rm", "refused:lab").returncode == 0


@pytest.mark.parametrize(("network", "interfaces"), [("none", 1), ("host", len(os.listdir("/sys/class/net")))])
def test_a_step_runs_with_no_network_or_with_the_machines(
    engine: Engine, context: Path, tmp_path: Path, network: str, interfaces: int
):
    (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN test $(grep -c : /proc/net/dev) = {interfaces}\n")
    build(engine, context, oci(tmp_path / "image.tar"), "--network", network)


def test_a_step_has_no_bridge(engine: Engine, context: Path, tmp_path: Path):
    with pytest.raises(AssertionError, match="network bridge not found"):
        build(engine, context, oci(tmp_path / "image.tar"), "--network", "default")


def test_store_and_registry_keep_the_digest_of_the_tar(engine: Engine, address: str, context: Path, tmp_path: Path):
    name, path = f"{address}/kept:lab", tmp_path / "image.tar"
    digest = build(engine, context, oci(path, name=name))
    engine.run("load", "--input", str(path))
    assert stored(engine, name) == digest
    assert f"lab: digest: {digest} " in engine.run("push", name).stdout
    engine.run("image", "rm", name)
    pulled = f"{address}/kept@{digest}"
    assert f"Digest: {digest}\nStatus: Downloaded" in engine.run("pull", pulled).stdout
    assert engine.run("run", "--rm", "--network=none", pulled, "cat", "/made").stdout == "copied\nmade\n"


def test_a_base_by_its_digest_gives_the_same_image(engine: Engine, address: str, context: Path, tmp_path: Path):
    by_tag = build(engine, context, oci(tmp_path / "image.tar"))
    engine.run("tag", BASE, f"{address}/base:lab")
    engine.run("push", f"{address}/base:lab")
    pinned = f"{address}/base@{stored(engine, BASE)}"
    (context / "Dockerfile").write_text((context / "Dockerfile").read_text().replace(BASE, pinned))
    assert build(engine, context, oci(tmp_path / "image.tar"), "--pull") == by_tag


def test_the_python_sdk_pulls_by_digest(engine: Engine, address: str, context: Path, tmp_path: Path):
    uv = [sys.executable, "-m", "uv", "run", "--quiet", "--no-project", "--python", sys.executable]
    python = [*uv, "--with", "docker==7.1.0", "python", "-c"]
    if subprocess.run([*python, "import docker"], cwd=tmp_path).returncode and os.environ.get("CI") != "true":
        pytest.skip("the lab lacks the docker package for Python")
    name, path = f"{address}/sdk:lab", tmp_path / "image.tar"
    digest = build(engine, context, oci(path, name=name))
    for words in (["load", "--input", str(path)], ["push", name], ["image", "rm", name]):
        engine.run(*words)
    command, variables = [*python, SDK, f"{address}/sdk@{digest}"], {**os.environ, **engine.environment}
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{digest} copied\nmade\n", done.stderr


def test_nothing_is_left_of_an_engine():
    mounts, children = Path("/proc/mounts").read_text(), own_children()
    with buildkit() as running:
        running.base_image(BASE)
        running.run("run", "--detach", "--network=none", BASE, "sleep", "983.732")
        assert len(own_children()) == len(children) + 1
        assert Path("/proc/mounts").read_text() == mounts
    folder = running.socket.parent.parent
    assert not folder.exists()
    assert not [group for group, _, _ in os.walk("/sys/fs/cgroup") if folder.name in group]
    assert own_children() == children
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(folder) in command or "983.732" in command]


def own_children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
