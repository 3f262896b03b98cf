"""The vault's key holds what decides validity, and nothing of the place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dflash.compilation.ingredients import compiler, digest, ingredients, overrides, processor, recorded

DEVICES = ["cuda:0 NVIDIA H200 9.0", "cuda:1 NVIDIA H200 9.0"]


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    for name in ("draft.py", "mask.py"):
        (tmp_path / name).write_text(f"# {name}")
    return [tmp_path / "draft.py", tmp_path / "mask.py"]


def key(
    sources: list[Path], devices: list[str] = DEVICES, graphs: dict | None = None, **environ: str
) -> dict[str, str]:
    return ingredients(graphs or {"anchors": 512}, sources, devices, environ)


def changed(a: dict[str, str], b: dict[str, str]) -> set[str]:
    return {name for name in a if a[name] != b[name]}


def test_the_same_is_the_same_wherever_the_sources_lie(sources: list[Path], tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copies = [elsewhere / path.name for path in sources]
    for path, copy in zip(sources, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    assert key(sources) == key(list(reversed(copies)))


def test_each_ingredient_changes_with_what_it_stands_for(sources: list[Path]):
    first = key(sources)
    assert changed(first, key(sources, DEVICES[::-1])) == {"devices"}
    assert changed(first, key(sources, ["cuda:0 NVIDIA H100 9.0", DEVICES[1]])) == {"devices"}
    assert changed(first, key(sources, graphs={"anchors": 256})) == {"graphs"}
    assert changed(first, key(sources, TORCHINDUCTOR_MAX_AUTOTUNE="1")) == {"overrides"}
    assert changed(first, key(sources, TORCH_COMPILE_CACHE_KEY_TAG="x")) == {"overrides"}
    assert changed(key(sources, ["cpu"]), key(sources, ["cpu"], CXX="clang")) == {"compiler", "overrides"}
    sources[0].write_text("# another draft")
    assert changed(first, key(sources)) == {"sources"}


def test_processor_and_compiler_decide_only_where_something_runs_on_the_cpu(sources: list[Path]):
    """Two hosts with the same GPUs share their caches, whatever else is in them."""
    assert key(sources, ["cpu"]).keys() - key(sources).keys() == {"processor", "compiler"}


def test_where_a_cache_lies_and_how_fast_it_is_made_decide_nothing(sources: list[Path]):
    places = {"TORCHINDUCTOR_CACHE_DIR": "/x", "TRITON_CACHE_DIR": "/y", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    places |= {"TORCH_LOGS": "+dynamo", "TORCHELASTIC_RUN_ID": "1", "CUDA_HOME": "/usr", "TORCH_NCCL_DEBUG": "1"}
    assert key(sources, **places, HOME="/root", HOSTNAME="gpu1") == key(sources)
    assert overrides(places) == {}


def test_the_ptxas_that_came_with_torch_decides_nothing_and_another_does(sources: list[Path]):
    own = Path(torch.__file__).parent / "bin" / "ptxas"
    assert key(sources, TRITON_PTXAS_PATH=str(own)) == key(sources)
    assert changed(key(sources), key(sources, TRITON_PTXAS_PATH="/usr/bin/ptxas")) == {"overrides"}


def test_driver_host_and_path_are_recorded_beside(tmp_path: Path):
    assert set(recorded(tmp_path)) == {"host", "path", "driver"}


def test_processors_with_the_same_instructions_are_the_same(tmp_path: Path):
    for name, flags in (("a", "fpu sse avx2"), ("b", "avx2 fpu sse"), ("c", "fpu sse avx512f")):
        (tmp_path / name).write_text(f"model name : {name}\nflags\t\t: {flags}\n")
    assert processor(tmp_path / "a") == processor(tmp_path / "b") != processor(tmp_path / "c")


def test_a_compiler_that_is_not_there_is_nothing():
    assert compiler("no-such-compiler") == ""
    assert "g++" in compiler("g++") or "gcc" in compiler("g++").lower()


def test_a_hash_of_sources_depends_on_each(sources: list[Path]):
    assert len({digest(sources), digest(sources[:1]), digest(sources[1:])}) == 3
