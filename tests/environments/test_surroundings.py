"""What lies around an environment and reaches into it: search paths, CUDA_HOME, a user's packages, the driver."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.environments.cuda import driver
from dflash.environments.remote import on_host
from dflash.environments.spec import read_spec
from dflash.environments.surroundings import Surroundings, parse_driver, parse_toolkit
from dflash.finding import Finding
from dflash.hosts.inventory import Host
from tests.environments.test_faults import Damaged, blocking, let_outer_packages_in


def found_with(
    host: Host, folder: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Callable[[Path], str]
) -> list[Finding]:
    """Blocking findings when a variable is set for the processes of the host."""
    with on_host(host) as environments:
        environments.create(folder, wheels=wheels)
        (row,) = environments.listed()
    monkeypatch.setenv(name, value(Path(row["path"])))
    with on_host(host) as environments:
        return blocking(environments.verify(folder, row["path"])[0])


def test_a_library_path_that_hides_a_library_is_found(
    host: Host, folder: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "libnccl.so.2").touch()
    (found,) = found_with(host, folder, wheels, monkeypatch, "LD_LIBRARY_PATH", lambda _: f"{tmp_path}/cuda:/nowhere")
    assert (found.name, found.found) == (
        "ld-library-path",
        f"{tmp_path}/cuda has libnccl.so.2, which the environment has too",
    )


def test_a_python_path_that_hides_a_package_is_found(
    host: Host, folder: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "torch.py").touch()
    (found,) = found_with(host, folder, wheels, monkeypatch, "PYTHONPATH", lambda _: str(tmp_path / "mine"))
    assert (found.name, found.found) == ("pythonpath", f"{tmp_path}/mine hides torch")


def test_a_cuda_home_of_another_major_is_found(
    host: Host, folder: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "cuda-12.8").mkdir()
    (found,) = found_with(host, folder, wheels, monkeypatch, "CUDA_HOME", lambda _: str(tmp_path / "cuda-12.8"))
    assert (found.name, found.found) == ("cuda-home", "leads to CUDA 12.8; the environment is for 13.0")


def test_a_user_site_that_is_let_in_and_hides_a_package_is_found(
    host: Host, folder: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = tmp_path / "user" / "lib" / version / "site-packages"
    (site / "triton").mkdir(parents=True)
    (site / "triton" / "__init__.py").touch()

    def let_in(place: Path) -> str:
        let_outer_packages_in(Damaged(place, wheels))
        return str(tmp_path / "user")

    found = found_with(host, folder, wheels, monkeypatch, "PYTHONUSERBASE", let_in)
    assert [(each.name, each.subject) for each in found if each.name == "pythonpath"] == [
        ("pythonpath", "user site-packages")
    ]


AROUND = Surroundings("x86_64", {}, {}, {}, driver="570.124.06")


def test_a_driver_that_is_too_old_blocks_and_one_that_is_missing_warns(folder: Path):
    spec = read_spec(folder / "env.yaml")
    (old,) = driver(spec, AROUND)
    assert (old.severity, old.name) == ("block", "driver-too-old")
    assert old.found == "570.124.06 is too old for CUDA 13.0, which needs 580.65.06"
    (missing,) = driver(spec, replace(AROUND, driver=None))
    assert (missing.severity, missing.name) == ("warn", "no-driver")
    (new,) = driver(spec, replace(AROUND, driver="580.65.06"))
    assert new.severity == "ok"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n", "535.183.01"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)\n",
            "580.65.06",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (b@)  \n", "580.159.04"),
        ("", None),
    ],
)
def test_the_driver_is_read_from_what_its_module_says(text: str, version: str | None):
    assert parse_driver(text) == version


def test_the_toolkit_is_read_from_its_file_or_its_folder(tmp_path: Path):
    assert parse_toolkit('{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}}', "/usr/local/cuda") == "12.8.1"
    (tmp_path / "cuda-13.0").mkdir()
    (tmp_path / "cuda").symlink_to("cuda-13.0")
    assert parse_toolkit("", str(tmp_path / "cuda")) == "13.0"
    assert parse_toolkit("", str(tmp_path)) is None
