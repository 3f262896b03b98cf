"""The probe of CUDA, run against libraries with the driver's functions and none of its GPUs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dflash.hosts.chain import parse_chain
from dflash.hosts.reach import reach
from dflash.provision.fact import read
from dflash.provision.facts.cuda import CUDA, Cuda

NVML = """
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
"""
# Handles are wide, as the driver's are: one that is cut to 32 bits on the way is noticed.
LIBCUDA = """
#include <stdlib.h>
static const size_t CONTEXT = 0x7f1234560000, MEMORY = 0x7fabcdef0000;
static int says(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
int cuInit(unsigned flags) { return says("STANDIN_INIT"); }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(size_t *context, int device) {
    *context = CONTEXT + device;
    return device ? says("STANDIN_SECOND") : 0;
}
int cuCtxSetCurrent(size_t context) { return context - CONTEXT < 2 ? 0 : 201; }
int cuMemAlloc_v2(size_t *memory, size_t size) { *memory = MEMORY; return size == 1 << 20 ? 0 : 1; }
int cuMemFree_v2(size_t memory) { if (memory != MEMORY) abort(); return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    for name, source in (("libnvidia-ml.so.1", NVML), ("libcuda.so.1", LIBCUDA)):
        words = ["gcc", "-shared", "-fPIC", "-xc", "-", "-o", str(folder / name)]
        subprocess.run(words, input=source, text=True, check=True)
    return folder


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, Cuda(0, 2, 0, 2, (0, 0))),
        ({"STANDIN_INIT": "999"}, Cuda(0, 2, 999)),
        ({"STANDIN_SECOND": "46"}, Cuda(0, 2, 0, 2, (0, 46))),
    ],
    ids=["all works", "cuInit fails while NVML counts", "another holds the second GPU"],
)
def test_how_far_a_process_comes_is_told(
    driver: Path, variables: dict[str, str], found: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LD_LIBRARY_PATH": str(driver), **variables}.items():
        monkeypatch.setenv(name, value)
    with reach(parse_chain("local")) as connection:
        assert read(connection, [CUDA])[CUDA] == found


def test_a_library_that_is_not_there_is_named_with_the_loaders_words() -> None:
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("this machine has a driver")
    with reach(parse_chain("local")) as connection:
        missing = dict(read(connection, [CUDA])[CUDA].missing)
    assert missing.keys() == {"libcuda.so.1", "libnvidia-ml.so.1"}
    assert "cannot open shared object file" in missing["libcuda.so.1"]
