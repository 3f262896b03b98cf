"""A small environment of stand-in wheels, shaped like a CUDA one, and hosts to make it on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.environments.remote import HostEnvironments, on_host
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from tests.hosts.conftest import lab_sshd  # noqa: F401 - a fixture
from tests.wheels import make_wheel, pin

SPEC = """name: small
python: ">=3.11,<3.14"
torch: "2.11.0"
torch_backend: cu130
cuda: "13.0"
min_driver: "580.65.06"
allowed_conflicts: [nvidia/__init__.py]
"""


SHARED = {"nvidia/__init__.py": b""}


def nccl(wheels: Path, major: int, version: str = "2.28.9") -> Path:
    """NCCL's wheels for two majors of CUDA own the same path, as the real ones do."""
    files = {"nvidia/nccl/lib/libnccl.so.2": f"for CUDA {major}".encode(), "nvidia/nccl/include/nccl.h": b"the same"}
    files |= SHARED
    return make_wheel(wheels, f"nvidia_nccl_cu{major}", version, files)


def declare(folder: Path, wheels: Path, name: str = "small") -> Path:
    """An environment's folder, and the wheels that its lock pins."""
    made = [
        make_wheel(
            wheels,
            "torch",
            "2.11.0",
            {"torch/__init__.py": b"", "torch/lib/libtorch.so": b"so"},
            requires=("triton==3.6.0",),
        ),
        make_wheel(wheels, "triton", "3.6.0"),
        make_wheel(
            wheels,
            "nvidia_cuda_runtime",
            "13.0.96",
            {**SHARED, "nvidia/cu13/lib/libcudart.so.13": b"runtime"},
        ),
        nccl(wheels, 13),
        make_wheel(wheels, "numpy", "2.3.0", {"numpy/__init__.py": b"x = 1\n", "numpy/core.py": b"y = 2\n" * 1000}),
    ]
    folder.mkdir(parents=True)
    (folder / "env.yaml").write_text(SPEC.replace("name: small", f"name: {name}"))
    (folder / "requirements.lock").write_text("".join(pin(wheel).replace("_", "-", 4) for wheel in made))
    return folder


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


@pytest.fixture
def folder(tmp_path: Path, wheels: Path) -> Path:
    return declare(tmp_path / "envs" / "small", wheels)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """This machine, with a root of the test's own."""
    return Host("here", parse_chain("local"), root=str(tmp_path / "root"))


@pytest.fixture
def environments(host: Host) -> Iterator[HostEnvironments]:
    with on_host(host) as opened:
        yield opened
