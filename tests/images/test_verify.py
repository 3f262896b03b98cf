"""An image is read from inside, on this machine and at the end of a chain, and what is wrong with it is a finding."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from docker.client import DockerClient

from dflash import images
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host, find_host
from dflash.hosts.reach import reach
from dflash.images.build import Built, Wish, build
from dflash.images.failures import EngineMissing, ImageError
from dflash.images.forward import forwarded
from dflash.images.verify import against_record, verify_image
from tests.images.lab import BASE
from tests.lab.buildkit import Engine
from tests.lab.lxc import container as lxc_container
from tests.lab.service import wait_until

LOCAL = find_host("local", "hosts.yaml")


@pytest.fixture
def built(engine: Engine, address: str, project: Path, tmp_path: Path, wheels: Path) -> Built:
    return build(Wish("small", base=BASE, wheels=wheels, push=f"{address}/verified"), project, tmp_path)


def test_files_that_differ_from_the_record_are_counted_and_the_first_is_named():
    record = {"/opt/env/a": [1, "aa"], "/opt/env/b": [2, "bb"], "/opt/env/link": [0, "a"]}
    (same,) = against_record(record, record)
    assert (same.severity, same.found) == ("ok", "3 files are as the build recorded them")
    found = list(against_record({"/opt/env/a": [1, "ab"], "/opt/env/link": [0, "b"], "/opt/env/c": [0, ""]}, record))
    assert [(each.name, each.found) for each in found] == [
        ("file-changed", "changed since the build: /opt/env/a and 1 more"),
        ("file-removed", "removed since the build: /opt/env/b"),
        ("file-added", "added since the build: /opt/env/c"),
    ]
    (absent,) = against_record(record, None)
    assert (absent.severity, absent.name) == ("warn", "no-record")


@pytest.mark.parametrize("name", ["inside", "relay"])
def test_what_is_sent_to_a_far_end_is_python_3_8(name: str):
    ast.parse((Path(images.__file__).parent / f"{name}.py").read_text(), feature_version=(3, 8))


def test_a_host_without_an_engine_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(reach(parse_chain("local")))
        with pytest.raises(EngineMissing, match=r"no Docker engine answers: .*nobody\.sock: No such file"):
            stack.enter_context(forwarded(connection))


@pytest.mark.nightly
def test_an_image_that_was_changed_afterwards_is_found(built: Built, engine: Engine, address: str, tmp_path: Path):
    project = tmp_path / "project"
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(
        f"FROM {built.record['pushed'][0]}\nUSER 0\n"
        "RUN echo 'x = 1' >> /opt/env/lib/python3.11/site-packages/alpha/__init__.py\nUSER 10001:10001\n"
        "ENV PYTHONPATH=/opt/dflash/shadow\n"
    )
    name = f"{address}/changed:lab"
    engine.run(
        "buildx",
        "build",
        "--provenance=false",
        "--network=none",
        "--load",
        "--tag",
        name,
        "--file",
        str(dockerfile),
        str(tmp_path / "build"),
    )
    engine.run("push", name)
    digest = engine.run("image", "inspect", "--format", "{{.Id}}", name).stdout.strip()
    findings = verify_image(f"{address}/changed@{digest}", LOCAL, project, tmp_path)
    assert [(each.severity, each.subject) for each in findings][:2] == [
        ("block", "package alpha"),
        ("warn", "build record"),
    ]
    assert "alpha/__init__.py" in findings[0].found
    assert findings[0].cure.startswith("build it again from its commit")


@pytest.mark.nightly
def test_an_image_from_another_lock_is_found(built: Built, tmp_path: Path):
    lock = tmp_path / "project" / "envs" / "small" / "requirements.lock"
    lock.write_text("# made again\n" + lock.read_text())
    findings = verify_image(built.record["pushed"][0], LOCAL, tmp_path / "project", tmp_path)
    assert [(each.severity, each.name) for each in findings if each.name] == [("block", "other-lock")]


@pytest.mark.nightly
def test_an_image_that_is_not_ours_is_named(engine: Engine, address: str, tmp_path: Path):
    engine.run("tag", BASE, f"{address}/foreign:lab")
    engine.run("push", f"{address}/foreign:lab")
    digest = engine.run("image", "inspect", "--format", "{{.Id}}", BASE).stdout.strip()
    with pytest.raises(ImageError, match="/opt/env/bin/python"):
        verify_image(f"{address}/foreign@{digest}", LOCAL, tmp_path, tmp_path)
    assert engine.run("ps", "--all", "--quiet").stdout == ""


@pytest.mark.nightly
def test_the_engine_of_a_host_at_the_end_of_a_chain_gives_the_same(built: Built, engine: Engine, tmp_path: Path):
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with lxc_container("dflash-images", {Path("/run/docker.sock"): engine.socket}):
        host = Host("far", parse_chain("lxc:dflash-images"))
        there = verify_image(built.record["pushed"][0], host, tmp_path / "project", tmp_path)
        assert there == verify_image(built.record["pushed"][0], LOCAL, tmp_path / "project", tmp_path)
        wait_until(lambda: threading.active_count() == threads, "the end of every relay", 10)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert {each.severity for each in there} == {"ok"}


@pytest.mark.nightly
def test_what_an_engine_far_away_is_asked_passes_through_a_socket_that_only_we_can_use(engine: Engine):
    with reach(parse_chain("local")) as connection, forwarded(connection) as socket:
        assert socket.parent.stat().st_mode & 0o077 == 0
        with contextlib.closing(DockerClient(f"unix://{socket}")) as client:
            assert client.ping()
            assert BASE in client.images.get(BASE).tags
    assert not socket.exists()


SCHEMA = """
import json, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(str(found) if found else 0)
"""


@pytest.mark.nightly
def test_the_bill_of_materials_is_what_the_official_schema_says(built: Built, tmp_path: Path):
    uv = [sys.executable, "-m", "uv", "run", "--quiet", "--no-project", "--python", sys.executable]
    python = [*uv, "--with", "cyclonedx-python-lib[json-validation]", "python", "-c"]
    if subprocess.run([*python, "import cyclonedx"], cwd=tmp_path).returncode and os.environ.get("CI") != "true":
        pytest.skip("the lab lacks cyclonedx-python-lib")
    bill = built.folder / "sbom.json"
    done = subprocess.run([*python, SCHEMA, str(bill)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({**json.loads(bill.read_bytes()), "specVersion": 16}))
    assert subprocess.run([*python, SCHEMA, str(broken)], cwd=tmp_path, capture_output=True).returncode != 0
