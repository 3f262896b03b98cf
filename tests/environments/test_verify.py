"""A real virtual environment, made by uv from small wheels, is broken in each way and the break is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import default_environment
from uv import find_uv_bin

from dflash.environments import EnvironmentSpec, parse_lock
from dflash.environments.installed import read, site_folders
from dflash.environments.problems import problem
from dflash.environments.shadows import shadows
from dflash.environments.snapshot import Mode
from dflash.environments.verify import REMAKE, judge
from dflash.finding import Finding
from tests.wheels import make_wheel, pin

SPEC = EnvironmentSpec(name="test", python=">=3.11", torch="9.9+cpu", torch_backend="cpu")


class Made:
    """A virtual environment of alpha 1.0, beta 2.0 and a stand-in torch 9.9+cpu, with its lock."""

    def __init__(self, folder: Path) -> None:
        self.wheels, self.prefix = folder / "wheels", folder / "venv"
        wheels = [
            make_wheel(self.wheels, "alpha", files={"alpha/__init__.py": b"", "alpha/data.bin": b"12345678"}),
            make_wheel(self.wheels, "beta", "2.0"),
            make_wheel(self.wheels, "torch", "9.9+cpu"),
        ]
        self.lock = "".join(pin(wheel) for wheel in wheels).encode()
        self.uv("venv", "--quiet", str(self.prefix))
        self.install(*map(str, wheels))
        self.site = self.prefix / site_folders(self.prefix)[0]

    def uv(self, *words: str) -> None:
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "VIRTUAL_ENV"))}
        environ["UV_CACHE_DIR"] = str(self.wheels.parent / "cache")
        subprocess.run([find_uv_bin(), *words, "--offline"], env=environ, check=True, capture_output=True)

    def install(self, *wheels: str) -> None:
        python = str(self.prefix / "bin" / "python")
        self.uv("pip", "install", "--quiet", "--no-deps", "--link-mode", "copy", "--python", python, *wheels)

    def stamp(self) -> None:
        """Stamp it as bootstrap.py does."""
        lock = parse_lock(self.lock, "lock")
        (self.prefix / "dflash-stamp").write_text(f"python 3\nlock {lock.id}\n")
        snapshot = read(self.prefix, "quick")
        lines = [f"{each.record_sha256}  {each.folder}/RECORD\n" for each in snapshot.distributions]
        (self.prefix / "dflash-records").write_text("".join(lines))

    def problems(self, mode: Mode = "full") -> list[Finding]:
        findings = judge(parse_lock(self.lock, "lock"), SPEC, read(self.prefix, mode))
        return [each for each in findings if each.severity == "block"]

    def problem(self, mode: Mode = "full") -> Finding:
        (only,) = self.problems(mode)
        return only


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("environment"))


@pytest.fixture
def made(template: Made, tmp_path: Path) -> Made:
    """A copy of its own for each test."""
    own = Made.__new__(Made)
    own.wheels, own.lock = template.wheels, template.lock
    own.prefix = tmp_path / "venv"
    shutil.copytree(template.prefix, own.prefix, symlinks=True)
    own.site = own.prefix / template.site.relative_to(template.prefix)
    return own


def test_an_environment_as_locked_has_no_problem(made: Made) -> None:
    made.stamp()
    findings = judge(parse_lock(made.lock, "lock"), SPEC, read(made.prefix, "full"))
    assert [each.severity for each in findings] == ["ok"]
    assert findings[0].found.startswith("3 packages, ")


def test_a_changed_file_is_named(made: Made) -> None:
    (made.site / "alpha/data.bin").write_bytes(b"87654321")
    problem = made.problem()
    assert problem.subject == "package alpha"
    assert problem.found.startswith("changed since it was installed: ")
    assert problem.found.endswith("alpha/data.bin")
    assert problem.cure == REMAKE


def test_comparing_sizes_alone_misses_a_change_of_the_same_size_but_not_of_another(made: Made) -> None:
    (made.site / "alpha/data.bin").write_bytes(b"87654321")
    assert made.problems("quick") == []
    (made.site / "alpha/data.bin").write_bytes(b"876543210")
    assert "changed" in made.problem("quick").found


def test_a_change_that_keeps_size_and_time_is_found_although_the_file_was_hashed_before(made: Made) -> None:
    file = made.site / "alpha/data.bin"
    assert read(made.prefix, "cached").hashed > 0
    assert read(made.prefix, "cached").hashed == 0
    before = file.stat()
    file.write_bytes(b"87654321")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "alpha/data.bin" in made.problem("cached").found
    assert read(made.prefix, "cached").hashed == 0  # the change is remembered too, and still found
    assert "alpha/data.bin" in made.problem("cached").found


def test_a_damaged_memory_of_hashes_only_makes_it_slower(made: Made) -> None:
    (made.prefix / "dflash-verified.json").write_text('["not", "a map"]')
    snapshot = read(made.prefix, "cached")
    assert snapshot.hashed > 0
    assert read(made.prefix, "cached").hashed == 0


def test_a_removed_file_is_named(made: Made) -> None:
    (made.site / "beta/__init__.py").unlink()
    assert "removed since it was installed: " in made.problem().found


def test_many_changed_files_of_a_package_are_one_finding(made: Made) -> None:
    shutil.rmtree(made.site / "alpha")
    assert made.problem().found.endswith("alpha/__init__.py and 1 more")


def test_a_package_the_lock_does_not_have_is_found(made: Made, tmp_path: Path) -> None:
    made.install(str(make_wheel(tmp_path, "gamma", "3.1")))
    assert made.problem() == problem("extra", "package gamma", "3.1 is installed; the lock does not have it", REMAKE)


def test_a_missing_package_is_found(made: Made) -> None:
    made.uv("pip", "uninstall", "--quiet", "--python", str(made.prefix / "bin/python"), "beta")
    assert made.problem().found == "missing; the lock has 2.0"


def test_another_version_is_found(made: Made, tmp_path: Path) -> None:
    made.install(str(make_wheel(tmp_path, "alpha", "1.1")))
    assert made.problem().found == "1.1 is installed; the lock has 1.0"


def test_another_build_of_torch_is_found(made: Made, tmp_path: Path) -> None:
    made.install(str(make_wheel(tmp_path, "torch", "9.9+cu130")))
    found = {each.subject: each.found for each in made.problems()}
    assert found["torch build"] == "9.9+cu130 is installed, env.yaml declares 9.9+cpu"


def test_two_packages_that_own_one_file_are_found(made: Made, tmp_path: Path) -> None:
    made.install(str(make_wheel(tmp_path, "gamma", files={"alpha/data.bin": b"overwritten"})))
    found = {each.subject: each.found for each in made.problems()}
    assert "both own " in found["alpha and gamma"]
    assert "changed" in found["package alpha"]


def test_an_overwritten_file_is_still_found_when_the_second_owner_is_gone(made: Made, tmp_path: Path) -> None:
    made.install(str(make_wheel(tmp_path, "gamma", files={"alpha/data.bin": b"overwritten"})))
    made.uv("pip", "uninstall", "--quiet", "--python", str(made.prefix / "bin/python"), "gamma")
    assert "removed" in made.problem().found


def test_one_package_installed_twice_is_found(made: Made) -> None:
    shutil.copytree(made.site / "alpha-1.0.dist-info", made.site / "alpha-0.9.dist-info")
    metadata = made.site / "alpha-0.9.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "0.9"))
    assert "installed twice, as 0.9 and 1.0" in [each.found for each in made.problems()]


def test_a_file_that_no_package_owns_is_found(made: Made) -> None:
    (made.site / "sitecustomize.py").write_text("")
    assert made.problem().found.startswith("no package owns ")


def test_the_same_version_from_other_bytes_is_found(made: Made, tmp_path: Path) -> None:
    made.stamp()
    other = make_wheel(tmp_path, "beta", "2.0", {"beta/__init__.py": b"evil = True\n"})
    made.install("--reinstall", str(other))
    assert made.problem().found == "installed again by something else since the environment was made"


def test_an_environment_made_from_another_lock_is_found(made: Made) -> None:
    made.stamp()
    made.lock += b"# edited\n"
    assert made.problem().found == "made from another requirements.lock"


def test_an_environment_that_inv_did_not_make_is_a_warning(made: Made) -> None:
    findings = judge(parse_lock(made.lock, "lock"), SPEC, read(made.prefix, "full"))
    assert [each.severity for each in findings] == ["ok", "warn"]


def test_bytecode_pip_and_setuptools_are_no_business_of_the_lock(made: Made, tmp_path: Path) -> None:
    made.install(*(str(make_wheel(tmp_path, name, "99.0")) for name in ("pip", "setuptools")))
    cache = made.site / "alpha/__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "__init__.cpython-311.pyc").write_bytes(b"x")
    assert made.problems() == []


def test_a_package_for_another_platform_is_not_missed(made: Made) -> None:
    made.lock += b"winonly==1.0 ; sys_platform == 'win32' --hash=sha256:" + b"0" * 64 + b"\n"
    lock, snapshot = parse_lock(made.lock, "lock"), read(made.prefix, "quick")
    variables = {key: str(value) for key, value in default_environment().items()}
    assert all(each.severity != "block" for each in judge(lock, SPEC, snapshot, variables))
    there = judge(lock, SPEC, snapshot, {**variables, "sys_platform": "win32"})
    assert [each.subject for each in there if each.severity == "block"] == ["package winonly"]


def test_an_environment_that_can_not_be_written_is_verified_all_the_same(made: Made) -> None:
    (made.prefix / "dflash-verified.json").mkdir()  # stops root as well, which a mode would not
    assert made.problems("cached") == []
    assert [path.name for path in made.prefix.glob("dflash-verified*")] == ["dflash-verified.json"]


def test_a_package_hidden_by_an_earlier_entry_of_the_path_is_found(tmp_path: Path) -> None:
    venv, other = tmp_path / "venv", tmp_path / "other"
    site = venv / "lib/site-packages"
    path = [str(other), "/usr/lib/python3.11", str(site), str(tmp_path / "late")]
    listing = {str(other): ["numpy.py", "notes.txt"], str(tmp_path / "late"): ["torch"]}
    (finding,) = shadows(path, venv, {"numpy", "torch", "notes"}, listing)
    assert finding.subject == "package numpy"
    assert str(other / "numpy.py") in finding.found
    assert finding.severity == "block"


def test_pythonpath_that_hides_a_package_is_found_in_a_real_interpreter(tmp_path: Path) -> None:
    (tmp_path / "yaml").mkdir()
    (tmp_path / "yaml/__init__.py").write_text("raise SystemExit('the wrong yaml')\n")
    (tmp_path / "docker").mkdir()
    code = (
        "import sys; place = sys.path.pop(sys.path.index(sys.argv[1])); from pathlib import Path\n"
        "from dflash.environments import verify; sys.path.insert(0, place)\n"
        "for each in verify(Path('envs/local'), mode='quick'): print(each.subject, each.found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"package yaml hidden by {tmp_path / 'yaml'}" in done.stdout
    assert "docker" not in done.stdout
