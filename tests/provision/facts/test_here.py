"""Parsers on recorded text, and readers on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dflash.provision.facts import here as facts

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:   12000000 kB\n"
KIB, MIB, GIB = 2**10, 2**20, 2**30


def test_without_a_cgroup_limit_memory_is_what_the_kernel_says_is_available() -> None:
    fact = facts.parse_memory(MEMINFO, [{"limit": "max\n", "used": "5", "stat": ""}, {}])
    assert fact == facts.MemoryFact(12000000 * KIB, None)


def test_a_cgroup_limit_counts_less_what_is_used_but_not_what_is_only_cached() -> None:
    level = {"limit": str(2 * GIB), "used": str(GIB), "stat": f"anon 5\ninactive_file {256 * MIB}\nslab 1\n"}
    fact = facts.parse_memory(MEMINFO, [level])
    assert fact == facts.MemoryFact(2 * GIB - (GIB - 256 * MIB), 2 * GIB)


def test_the_tightest_cgroup_on_the_way_up_holds() -> None:
    levels = [{"limit": str(8 * GIB), "used": "0"}, {"limit": str(3 * GIB), "used": str(GIB)}]
    assert facts.parse_memory(MEMINFO, levels) == facts.MemoryFact(2 * GIB, 3 * GIB)


def test_version_1_says_no_limit_with_a_huge_number() -> None:
    level = {"limit": "9223372036854771712", "used": "1", "stat": "total_inactive_file 0\n"}
    assert facts.parse_memory(MEMINFO, [level]).limit is None


def test_more_used_than_the_limit_leaves_nothing_not_less() -> None:
    assert facts.parse_memory(MEMINFO, [{"limit": str(GIB), "used": str(2 * GIB)}]).available == 0


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("0::/user.slice/x.scope\n", "/sys/fs/cgroup/user.slice/x.scope"),
        ("5:cpu,cpuacct:/a\n4:memory:/docker/b\n0::/\n", "/sys/fs/cgroup/memory/docker/b"),
        ("0::/a:b\n", "/sys/fs/cgroup/a:b"),
        ("3:cpuset:/x\n", None),
        ("", None),
    ],
)
def test_the_cgroup_of_this_process_is_found_in_both_versions(text: str, folder: str | None) -> None:
    assert facts.parse_cgroup(text, "memory") == folder


def test_cpus_are_the_affinity_cut_by_the_quota() -> None:
    assert facts.parse_cpus(8, []) == 8
    assert facts.parse_cpus(8, ["max 100000\n", "max"]) == 8
    assert facts.parse_cpus(8, ["150000 100000\n", "max 100000\n"]) == 1.5


@pytest.mark.parametrize(
    ("out", "version"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright\n", "12.2.0"),
        ("g++ (GCC) 13.1.1 20230614 (Red Hat 13.1.1-4)\n", "13.1.1"),
        ("Debian clang version 14.0.6\nTarget: x86_64\n", "14.0.6"),
        ("Ubuntu clang version 14.0.0-1ubuntu1.1\n", "14.0.0"),
        ("", ""),
    ],
)
def test_a_compilers_version_is_read_from_its_first_line(out: str, version: str) -> None:
    assert facts.parse_compiler_version(out) == version


def test_torch_that_can_not_be_imported_says_why_in_its_last_words() -> None:
    trace = "Traceback (most recent call last):\n  File x\nImportError: libcudart.so.13: cannot open\n"
    assert facts.parse_torch(1, "", trace).error == "ImportError: libcudart.so.13: cannot open"
    assert facts.parse_torch(-4, "", "").error == "the process died of SIGILL"
    assert facts.parse_torch(124, "", "no answer in 120 s").error == "no answer in 120 s"


def test_torch_is_really_imported_in_a_child() -> None:
    fact = facts.read_torch()
    assert fact.error is None
    assert fact.version == "2.13.0+cpu"
    assert fact.cuda is None


def test_an_interpreter_that_is_not_there_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    assert facts.read_torch(str(tmp_path / "python")).error == "No such file or directory"


def test_the_compiler_really_compiles_and_its_product_is_loaded() -> None:
    fact = facts.read_compiler()
    assert fact.error is None
    assert fact.path is not None
    assert fact.version


def test_a_compiler_that_is_not_there_is_named_with_the_one_that_is(tmp_path: Path) -> None:
    other = tmp_path / "clang++"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    fact = facts.read_compiler({"PATH": str(tmp_path)})
    assert (fact.wanted, fact.path, fact.alternative) == ("g++", None, "clang++")
    assert facts.read_compiler({"CXX": "icpx", "PATH": ""}).wanted == "icpx"


def test_a_compiler_that_fails_is_quoted_with_its_first_error(tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 'g++ 9.1.0' && exit\n"
        "echo 'probe.cpp:1:10: fatal error: Python.h: No such file or directory' >&2\n"
        "echo 'compilation terminated.' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    fact = facts.read_compiler({"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})
    assert fact.version == "9.1.0"
    assert fact.error == "probe.cpp:1:10: fatal error: Python.h: No such file or directory"


def test_a_folder_that_does_not_exist_yet_is_judged_by_the_disk_it_will_be_on(tmp_path: Path) -> None:
    fact = facts.read_disk(tmp_path / "not" / "yet")
    assert fact.error is None
    assert fact.free > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_says_so() -> None:
    fact = facts.read_disk(Path("/proc/1"))  # stops root as well
    assert fact.error is not None


def test_this_machine_can_be_read() -> None:
    assert facts.read_python().executable == sys.executable
    assert facts.read_platform().system == "Linux"
    assert facts.read_memory().available > 0
    assert 0 < facts.read_cpus() <= (os.cpu_count() or 1)
