"""What package churn does to an environment, done for real with an installer: found by name, and cured by switching."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash.environments.bootstrap import block_of
from dflash.environments.locking import uv
from dflash.environments.problems import CAUSES
from dflash.environments.remote import HostEnvironments, on_host
from dflash.finding import Finding
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from tests.environments.conftest import SPEC, declare, nccl
from tests.wheels import make_wheel

REPOSITORY = Path(__file__).parents[2]
UV = Path(sys.prefix) / "bin" / "uv"


class Damaged:
    """A generation in use, and what one does to it."""

    def __init__(self, place: Path, wheels: Path) -> None:
        self.place, self.wheels = place, wheels
        (self.site,) = place.glob("lib/python3*/site-packages")

    def install(self, *wheels: Path) -> None:
        self._uv("install", "--no-index", "--no-deps", "--reinstall", *map(str, wheels))

    def install_locked(self, requirements: Path) -> None:
        """From an index, as it is set up here."""
        words = ("pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(requirements))
        done = uv(*words, "--python", str(self.place / "bin" / "python"), cwd=requirements.parent)
        assert done.returncode == 0, done.stderr

    def uninstall(self, name: str) -> None:
        self._uv("uninstall", name)

    def _uv(self, verb: str, *words: str) -> None:
        python = str(self.place / "bin" / "python")
        subprocess.run([UV, "pip", verb, "--quiet", "--python", python, *words], check=True)

    def wheel(self, name: str, version: str = "1.0", files: dict[str, bytes] | None = None) -> Path:
        return make_wheel(self.wheels / "by-hand", name, version, files)


def edit(env: Damaged) -> None:
    with (env.site / "numpy/core.py").open("ab") as file:
        file.write(b"# a print for the night\n")


def edit_keeping_size_and_time(env: Damaged) -> None:
    path = env.site / "numpy/core.py"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"y = 2", b"y = 3"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edit_a_file_of_no_package(env: Damaged) -> None:
    with (env.place / "pyvenv.cfg").open("a") as file:
        file.write("prompt = mine\n")


def remove(env: Damaged) -> None:
    (env.site / "numpy/core.py").unlink()


def add(env: Damaged) -> None:
    (env.site / "sitecustomize.py").write_text("print('hello')\n")


def add_a_folder_by_a_link(env: Damaged) -> None:
    elsewhere = env.wheels / "elsewhere" / "einops"
    elsewhere.mkdir(parents=True, exist_ok=True)
    (elsewhere / "__init__.py").touch()
    (env.site / "einops").symlink_to(elsewhere)


def add_bytecode_without_a_source(env: Damaged) -> None:
    """Python runs it at its start."""
    (env.site / "sitecustomize.pyc").write_bytes(b"bytecode")


def install_setuptools(env: Damaged) -> None:
    """A virtual environment of Python's own has it; a generation has only what is locked."""
    env.install(
        env.wheel("setuptools", "80.0", {"setuptools/__init__.py": b"", "distutils-precedence.pth": b"import os\n"})
    )


def replace_by_a_pipe(env: Damaged) -> None:
    """Reading it would wait for ever."""
    (env.site / "numpy/core.py").unlink()
    os.mkfifo(env.site / "numpy/core.py")


def edit_a_shared_file(env: Damaged) -> None:
    """Two packages may own it, so no RECORD decides; what was written down does."""
    (env.site / "nvidia/__init__.py").write_text("import os\n")


def uninstall(env: Damaged) -> None:
    env.uninstall("numpy")


def install_something_else(env: Damaged) -> None:
    env.install(env.wheel("einops"))


def install_another_version(env: Damaged) -> None:
    env.install(env.wheel("numpy", "2.4.0"))


def install_nccl_for_cuda_12(env: Damaged) -> None:
    env.install(nccl(env.wheels / "by-hand", 12))


def install_nccl_for_cuda_12_and_remove_it(env: Damaged) -> None:
    install_nccl_for_cuda_12(env)
    env.uninstall("nvidia-nccl-cu12")


def leave_a_runtime_for_cuda_12(env: Damaged) -> None:
    """What is left when a package's own record is gone."""
    path = env.site / "nvidia/cuda_runtime/lib/libcudart.so.12"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"runtime")


def engine(name: str) -> Callable[[Damaged], None]:
    def install_run_and_remove(env: Damaged) -> None:
        """An engine writes kernels that it compiled beside its own files; an uninstaller leaves those."""
        env.install(env.wheel(name))
        (env.site / name / "compiled.so").write_bytes(b"kernel")
        env.uninstall(name)

    install_run_and_remove.__name__ = f"install_{name}_run_it_and_remove_it"
    return install_run_and_remove


def interrupted_uninstall(env: Damaged) -> None:
    """Pip moves what it removes to a name with a ~, and leaves it there when it is killed."""
    (env.site / "numpy").rename(env.site / "~umpy")


def install_another_triton(env: Damaged) -> None:
    env.install(env.wheel("triton", "3.5.1"))


def lose_the_record(env: Damaged) -> None:
    (env.place / "dflash-record.json").unlink()


def damage_the_record(env: Damaged) -> None:
    path = env.place / "dflash-record.json"
    path.write_bytes(path.read_bytes()[:-100])


def let_outer_packages_in(env: Damaged) -> None:
    path = env.place / "pyvenv.cfg"
    path.write_text(
        path.read_text().replace("include-system-site-packages = false", "include-system-site-packages = true")
    )


FAULTS: list[tuple[Callable[[Damaged], None], str, str]] = [
    (edit, "changed", "package numpy"),
    (edit_keeping_size_and_time, "changed", "package numpy"),
    (edit_a_file_of_no_package, "changed", "environment"),
    (remove, "removed", "package numpy"),
    (add, "added", "environment"),
    (add_a_folder_by_a_link, "added", "environment"),
    (add_bytecode_without_a_source, "added", "environment"),
    (install_setuptools, "extra", "package setuptools"),
    (replace_by_a_pipe, "changed", "package numpy"),
    (edit_a_shared_file, "changed", "environment"),
    (uninstall, "missing", "package numpy"),
    (install_something_else, "extra", "package einops"),
    (install_another_version, "version", "package numpy"),
    (install_nccl_for_cuda_12, "two-owners", "nvidia-nccl-cu12 and nvidia-nccl-cu13"),
    (install_nccl_for_cuda_12, "cuda-mixed", "CUDA 12"),
    (install_nccl_for_cuda_12_and_remove_it, "namespace-lost", "package nvidia-nccl-cu13"),
    (leave_a_runtime_for_cuda_12, "cuda-mixed", "CUDA 12"),
    (engine("sglang"), "leftover", "leftovers of sglang"),
    (engine("flashinfer"), "leftover", "leftovers of flashinfer"),
    (engine("vllm"), "leftover", "leftovers of vllm"),
    (interrupted_uninstall, "leftover", "leftovers of a package"),
    (install_another_triton, "triton-mismatch", "triton"),
    (lose_the_record, "no-record", "environment"),
    (damage_the_record, "no-record", "environment"),
    (let_outer_packages_in, "system-site", "pyvenv.cfg"),
]


def blocking(findings: list[Finding]) -> list[Finding]:
    return [each for each in findings if each.severity == "block"]


class Workshop:
    """A host and a declaration: the generation that cures one fault is the one that the next befalls."""

    def __init__(self, environments: HostEnvironments, base: Path) -> None:
        self.environments, self.wheels = environments, base / "wheels"
        self.folder = declare(base / "envs" / "small", self.wheels)
        self._clean: Path | None = None

    def take(self) -> Path:
        """A clean generation in use, which whoever takes it may damage."""
        place = self._clean or self.renew()
        self._clean = None
        return place

    def renew(self) -> Path:
        """Make one more, and switch to it."""
        made = self.environments.create(self.folder, wheels=self.wheels, again=True).id
        self.environments.use("small", made)
        self._clean = in_use(self.environments)
        assert self._clean.name == made
        return self._clean

    def findings(self, place: Path) -> list[Finding]:
        return self.environments.verify(self.folder, str(place))[0]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    base = tmp_path_factory.mktemp("shared")
    with on_host(Host("here", parse_chain("local"), root=str(base / "root"))) as environments:
        yield Workshop(environments, base)


@pytest.mark.parametrize(("fault", "name", "subject"), FAULTS, ids=[f"{f.__name__}: {n}" for f, n, _ in FAULTS])
def test_a_fault_is_found_by_name_and_cured_by_a_clean_generation(
    workshop: Workshop, fault: Callable[[Damaged], None], name: str, subject: str
):
    place = workshop.take()
    fault(Damaged(place, workshop.wheels))
    (found,) = [each for each in workshop.findings(place) if (each.name, each.subject) == (name, subject)]
    assert (found.severity, found.cause) == ("block", CAUSES[name])
    if name != "system-site":
        assert "./inv env.create small --again --host here, then env.use" in found.cure
    assert blocking(workshop.findings(workshop.renew())) == []


@pytest.mark.nightly
def test_the_real_wheels_of_nccl_for_two_cudas_own_one_path_and_uninstalling_one_breaks_the_other(
    host: Host, tmp_path: Path
):
    """The failure that this project came from, with NVIDIA's own files."""
    folder = tmp_path / "envs" / "nccl"
    folder.mkdir(parents=True)
    lock = (REPOSITORY / "envs" / "train-cu130" / "requirements.lock").read_text()
    (folder / "requirements.lock").write_text(block_of(lock, "nvidia-nccl-cu13") or "")
    (folder / "env.yaml").write_text(SPEC.replace("name: small", "name: nccl"))
    other = tmp_path / "other.txt"
    other.write_text(
        block_of((REPOSITORY / "envs" / "train-cu128" / "requirements.lock").read_text(), "nvidia-nccl-cu12")
    )
    with on_host(host) as environments:
        environments.use("nccl", environments.create(folder).id)
        place = in_use(environments)
        assert blocking(environments.verify(folder, str(place))[0]) == []
        env = Damaged(place, tmp_path)
        env.install_locked(other)
        names = {each.name for each in environments.verify(folder, str(place))[0]}
        assert {"two-owners", "cuda-mixed", "extra", "changed"} <= names
        env.uninstall("nvidia-nccl-cu12")
        findings, _ = environments.verify(folder, str(place))
        (lost,) = [each for each in findings if each.name == "namespace-lost"]
        assert lost.subject == "package nvidia-nccl-cu13"
        assert "nvidia/nccl/" in lost.found
        environments.use("nccl", environments.create(folder, again=True).id)
        assert blocking(environments.verify(folder, str(in_use(environments)))[0]) == []


def in_use(environments: HostEnvironments) -> Path:
    return Path(next(row["path"] for row in environments.listed() if row["current"]))


def test_the_quick_way_sees_sizes_times_and_records(environments: HostEnvironments, folder: Path, wheels: Path):
    environments.use("small", environments.create(folder, wheels=wheels).id)
    place = in_use(environments)
    assert blocking(environments.verify(folder, str(place), "quick")[0]) == []
    env = Damaged(place, wheels)
    path = env.site / "numpy/core.py"
    path.write_bytes(path.read_bytes().replace(b"y = 2", b"y = 3"))
    (found,) = blocking(environments.verify(folder, str(place), "quick")[0])
    assert (found.name, found.subject) == ("changed", "environment")
