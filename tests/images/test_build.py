"""An image is built by the real BuildKit, twice, and its bytes are the same; pushed, and it is still that image."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.images.lab as lab
from dflash import cli_images
from dflash.errors import UsageError
from dflash.hosts.inventory import find_host
from dflash.images import build as building
from dflash.images.build import Wish, build
from dflash.images.failures import BuildFailed, NotReproducible
from dflash.images.oci import open_oci
from dflash.images.plan import Ground
from dflash.images.verify import verify_image
from tests.images.lab import BASE, PACKAGES, commit, git, make_project
from tests.lab.buildkit import Engine
from tests.wheels import make_wheel, pin

CLOCK = "RUN date +%s%N > /made-at && chmod 600 /etc/hostname\n"


@pytest.fixture
def small(wheels: Path) -> Wish:
    return Wish("small", base=BASE, wheels=wheels)


def test_two_builds_without_a_cache_are_one_image_here_in_the_registry_and_inside(
    engine: Engine, address: str, project: Path, tmp_path: Path, small: Wish
):
    wish = Wish("small", base=BASE, wheels=small.wheels, check=True, push=f"{address}/small")
    built = build(wish, project, tmp_path)
    assert built.record["identical"] is True
    assert built.record["pushed"] == [f"{address}/small@{built.digest}"]
    tag = f"dflash/small:{built.record['commit'][:12]}"
    assert engine.run("image", "inspect", "--format", "{{.Id}}", tag).stdout.strip() == built.digest

    folder = tmp_path / "build" / "small" / built.digest.removeprefix("sha256:")
    assert sorted(path.name for path in folder.iterdir()) == ["files.json", "record.json", "sbom.json"]
    assert list(folder.parent.iterdir()) == [folder]  # nothing else is left of the build
    files = json.loads((folder / "files.json").read_bytes())
    assert not [path for path in files if path.endswith((".pyc", "INSTALLER", "uv_cache.json", "direct_url.json"))]
    names = {each["name"] for each in json.loads((folder / "sbom.json").read_bytes())["components"]}
    assert {*PACKAGES, "alpha", "python3.11-minimal"} <= names

    findings = verify_image(built.record["pushed"][0], find_host("local", tmp_path), project, tmp_path)
    assert [(each.severity, each.subject) for each in findings] == [
        ("ok", "image files"),
        ("ok", "commit"),
        ("ok", "installed files"),
    ]


@pytest.mark.nightly
def test_what_follows_its_name_is_run_as_it_is_by_a_user_without_rights(
    engine: Engine, project: Path, tmp_path: Path, small: Wish
):
    tag = f"dflash/small:{build(small, project, tmp_path).record['commit'][:12]}"
    program = "import os, sys; print(repr((sys.argv[1:], os.getuid(), os.getcwd(), sys.prefix)))"
    given = ['a "b" $HOME', "", "two\nlines", "*", "--", "-c"]
    done = engine.run("run", "--rm", "--network=none", tag, "python", "-c", program, *given)
    assert done.stdout == repr((given, 10001, "/opt/dflash", "/opt/env")) + "\n"
    failed = engine.run("run", "--rm", "--network=none", tag, "sh", "-c", "touch /opt/env/x", check=False)
    assert "Permission denied" in failed.stderr


@pytest.mark.nightly
def test_another_clone_and_a_warm_cache_give_the_same_image(
    engine: Engine, project: Path, tmp_path: Path, small: Wish, monkeypatch: pytest.MonkeyPatch
):
    git(tmp_path, "clone", "--quiet", str(project), "clone")
    first = build(small, project, tmp_path).digest
    assert build(small, tmp_path / "clone", tmp_path).digest == first
    monkeypatch.setattr(lab, "COMMITTED", "2026-04-01T12:00:00+00:00")
    (project / "more").write_text("more\n")
    commit(project)
    cached = build(small, project, tmp_path)  # its first layers are those of the commit before, with a later time
    checked = build(Wish("small", base=BASE, wheels=small.wheels, check=True), project, tmp_path)
    assert cached.digest == checked.digest != first


@pytest.mark.nightly
def test_a_build_that_writes_a_clock_is_caught_and_its_file_named(
    engine: Engine,
    project: Path,
    tmp_path: Path,
    wheels: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    file = project / "docker" / "train.Dockerfile"
    file.write_text(file.read_text().replace("COPY project/", f"{CLOCK}COPY project/"))
    monkeypatch.setattr(cli_images, "HOME", project)
    with pytest.raises(NotReproducible, match=r"/made-at: content differs: [0-9a-f]{64} and [0-9a-f]{64}"):
        cli_images.build(
            name="small",
            base=BASE,
            wheels=str(wheels),
            push="",
            out="",
            check=True,
            root=str(tmp_path),
            as_json=True,
        )
    told = json.loads(capsys.readouterr().out)
    assert told["identical"] is False
    assert told["difference"]["layer"] == 5
    assert "date +%s%N" in told["difference"]["made_by"]
    assert not list((tmp_path / "build" / "small").iterdir())


@pytest.mark.nightly
def test_the_tar_is_put_where_one_wants_it_and_is_that_image(
    engine: Engine, project: Path, tmp_path: Path, small: Wish
):
    built = build(Wish("small", base=BASE, wheels=small.wheels, out=tmp_path / "image.tar"), project, tmp_path)
    engine.run("image", "rm", f"dflash/small:{built.record['commit'][:12]}")
    engine.run("load", "--input", str(tmp_path / "image.tar"))
    tag = f"dflash/small:{built.record['commit'][:12]}"
    assert engine.run("image", "inspect", "--format", "{{.Id}}", tag).stdout.strip() == built.digest


@pytest.mark.nightly
def test_a_changed_tree_says_so_in_a_label_and_when_verified(
    engine: Engine, address: str, project: Path, tmp_path: Path, wheels: Path
):
    (project / "inv").write_text("#!/bin/sh\nexit 1\n")
    built = build(Wish("small", base=BASE, wheels=wheels, push=f"{address}/dirty"), project, tmp_path)
    assert built.record["changed"] == ["inv"]
    findings = verify_image(built.record["pushed"][0], find_host("local", tmp_path), project, tmp_path)
    assert [(each.severity, each.name) for each in findings if each.severity != "ok"] == [("warn", "dirty")]


@pytest.mark.nightly
def test_a_server_s_image_has_the_environment_and_no_code(engine: Engine, project: Path, tmp_path: Path, wheels: Path):
    built = build(Wish("served", base=BASE, wheels=wheels), project, tmp_path)
    files = json.loads((built.folder / "files.json").read_bytes())
    assert "/opt/env/bin/python" in files
    assert not [path for path in files if path.startswith("/opt/dflash")]


@pytest.fixture
def index(tmp_path: Path, wheels: Path) -> Iterator[str]:
    """The address of an index on loopback that has the wheels."""
    root = tmp_path / "index"
    for wheel in wheels.glob("*.whl"):
        name = wheel.name.split("-")[0].replace("_", "-").lower()
        (root / "simple" / name).mkdir(parents=True)
        (root / "simple" / name / wheel.name).write_bytes(wheel.read_bytes())
        (root / "simple" / name / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=root)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.nightly
def test_an_index_gives_the_same_image_as_a_folder_and_its_address_is_not_in_it(
    engine: Engine, project: Path, tmp_path: Path, small: Wish, index: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    monkeypatch.delenv("UV_EXTRA_INDEX_URL", raising=False)
    by_index = build(Wish("small", base=BASE, network="host", out=tmp_path / "image.tar"), project, tmp_path)
    by_folder = build(small, project, tmp_path)
    environment = [
        next(each for each in built.record["layers"] if "environment.sh" in each["made_by"])
        for built in (by_index, by_folder)
    ]
    assert environment[0]["digest"] == environment[1]["digest"]
    assert index.encode() not in (tmp_path / "image.tar").read_bytes()


@pytest.mark.nightly
def test_a_file_that_the_lock_does_not_know_is_named_with_its_package(
    engine: Engine, project: Path, tmp_path: Path, small: Wish
):
    lock = project / "envs" / "small" / "requirements.lock"
    lock.write_text(lock.read_text() + "missing==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(BuildFailed, match=r"the environment can not be made as its lock pins it.*missing"):
        build(small, project, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("envs/small/env.yaml", 'python: ">=3.11,<3.14"', 'python: ">=3.99"'),
            r"no environment with Python >=3.99 can be made on this base; .* \(.*No interpreter found",
        ),
        (("envs/small/requirements.lock", "", "torch"), "the base has no gcc, which torch.compile needs"),
    ],
)
def test_a_base_that_lacks_something_is_named_with_it(
    engine: Engine, project: Path, tmp_path: Path, wheels: Path, change: tuple[str, str, str], said: str
):
    file, before, after = change
    if after == "torch":
        wheel = make_wheel(tmp_path / "torch", "torch", "2.13.0+cpu")
        (project / file).write_text((project / file).read_text() + pin(wheel))
    else:
        (project / file).write_text((project / file).read_text().replace(before, after))
    with pytest.raises(BuildFailed, match=said):
        build(Wish("small", base=BASE, wheels=wheels), project, tmp_path)


@pytest.mark.nightly
def test_packages_of_an_archive_are_installed_without_a_trace_of_the_day(
    engine: Engine, project: Path, tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
):
    # The archive's own address: what a snapshot has is the same, only not here.
    places = ("debian bookworm", "debian bookworm-updates", "debian-security bookworm-security")
    sources = tuple(f"deb [check-valid-until=no] http://deb.debian.org/{place} main" for place in places)
    digest = engine.run("image", "inspect", "--format", "{{.Id}}", BASE).stdout.strip()
    ground = Ground((BASE,), BASE, digest, ("tcc", "libc6-dev"), sources)
    monkeypatch.setattr(building, "_ground", lambda base, bases: ground)
    wish = Wish("small", wheels=wheels, network="host", check=True, out=tmp_path / "image.tar")
    built = build(wish, project, tmp_path)
    assert built.difference is None
    with open_oci(tmp_path / "image.tar") as image:
        (layer,) = (each for each in image.layers if "packages.sh" in each.made_by)
        paths = {entry.path for entry, _ in image.entries(layer) if entry.kind == "file" and "/.wh." not in entry.path}
    assert "/usr/bin/x86_64-linux-gnu-tcc" in paths or "/usr/bin/tcc" in paths
    left = ("/var/lib/apt/lists/", "/var/cache/", "/var/log/", "/tmp/")
    assert not [path for path in paths if path.startswith(left) or path.endswith((".pyc", "-old"))]


def test_an_image_without_a_base_of_its_own_wants_one(engine: Engine, project: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="this image has no base of its own; give one with --base, such as cuda-12"):
        build(Wish("small"), project, tmp_path)


def test_a_base_by_a_tag_that_is_not_here_is_not_pulled(engine: Engine, project: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="the engine has no image 'debian:12', and a tag is not pulled"):
        build(Wish("small", base="debian:12"), project, tmp_path)


def test_a_folder_of_wheels_that_is_not_there_is_named(tmp_path: Path, wheels: Path):
    project = make_project(tmp_path / "project", wheels)
    with pytest.raises(UsageError, match="there is no such folder"):
        build(Wish("small", wheels=tmp_path / "nowhere"), project, tmp_path)
