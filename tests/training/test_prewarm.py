"""Cold, eight threads compile in turn and train; pre-warmed, the same training compiles nothing."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dflash.compilation.parcels import wanted
from dflash.compilation.vault import Vault, differing
from dflash.errors import CompilationError
from dflash.progress import Silent
from dflash.training.packing import save_rows
from dflash.training.prewarm import CACHE, cache_environment, graph_key, prewarm
from tests.training.small import CONFIG, as_json, rows

REPOSITORY = Path(__file__).parents[2]
COMPILED = replace(CONFIG, compile=True)


def train(target: Path, out: Path, cache: Path, config=COMPILED, limit: int = 240) -> dict:
    """One training in a fresh process with the compile cache `cache`; its result."""
    program = [sys.executable, "-B", "-m", "tests.training.small", str(target), str(out), "[48]", as_json(config)]
    environment = os.environ | cache_environment(cache)
    done = subprocess.run(program, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=limit)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def request_for_warmth(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("rows") / "rows.safetensors"
    save_rows(path, rows(buckets=[48]))
    return {"config": asdict(COMPILED), "target": str(target_folder), "rows": str(path)}


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Vault:
    place = tmp_path_factory.mktemp("vault")
    return Vault(place / "vault", place / "key")


@pytest.fixture(scope="module")
def warmed(request_for_warmth: dict, vault: Vault, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A pre-warmed folder, kept in the vault, and the report of its pre-warm."""
    out = tmp_path_factory.mktemp("prewarm")
    return out, prewarm(request_for_warmth, out, Silent(), vault)


def test_prewarm_finds_every_graph_in_a_second_pass(warmed: tuple[Path, dict]):
    _, report = warmed
    assert report["graphs"] == 4, "a target layer, fusion, a draft layer and scoring; one bucket"
    assert report["hit_rate"] == 1.0
    assert report["cache_bytes"] > 0


def test_a_training_in_front_of_a_warm_cache_compiles_nothing(
    warmed: tuple[Path, dict], target_folder: Path, tmp_path: Path
):
    out, _ = warmed
    counts = train(target_folder, tmp_path, out / CACHE)["cache"]
    assert counts["graphs"] == counts["autograd_hits"] == 4
    assert (counts["autograd_misses"], counts["inductor_misses"], counts["bypasses"]) == (0, 0, 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in wanted(folder)}


def test_a_cache_that_was_deleted_comes_back_from_the_vault_and_nothing_is_compiled(
    warmed: tuple[Path, dict], request_for_warmth: dict, vault: Vault, target_folder: Path, tmp_path: Path
):
    """Also for a run with another learning rate, seed and length, none of which shapes a graph."""
    out, report = warmed
    before = contents(out / CACHE)
    shutil.rmtree(out / CACHE)
    other = replace(COMPILED, seed=9, steps=7, optimizer=replace(COMPILED.optimizer, lr=1e-5))
    again = prewarm({**request_for_warmth, "config": asdict(other)}, out, Silent(), vault)
    assert (again["from_vault"], again["snapshot"], again["hit_rate"]) == (True, report["snapshot"], 1.0)
    assert again["roles"] == {}, "nothing was compiled"
    after = contents(out / CACHE)
    assert {name: after[name] for name in before} == before
    counts = train(target_folder, tmp_path, out / CACHE)["cache"]
    assert (counts["autograd_misses"], counts["inductor_misses"], counts["bypasses"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "ingredient"),
    [
        ({"anchors": COMPILED.anchors + 1}, "graphs"),
        ({"topology": replace(COMPILED.topology, drafters=COMPILED.topology.drafters + 1)}, "devices"),
        ({"draft": replace(COMPILED.draft, layers=COMPILED.draft.layers + 1)}, "graphs"),
    ],
)
def test_what_shapes_a_graph_is_in_the_vaults_key(request_for_warmth: dict, change: dict, ingredient: str):
    key = graph_key(request_for_warmth)
    other = graph_key({**request_for_warmth, "config": asdict(replace(COMPILED, **change))})
    assert ingredient in {line.partition(":")[0] for line in differing(key, other)}


def test_what_only_steers_the_training_is_not(request_for_warmth: dict):
    other = replace(COMPILED, seed=9, steps=7, prefetch=1, optimizer=replace(COMPILED.optimizer, lr=1e-5))
    assert graph_key({**request_for_warmth, "config": asdict(other)}) == graph_key(request_for_warmth)


@pytest.mark.nightly
def test_a_cache_that_does_not_hold_a_graph_is_not_called_warm(
    warmed: tuple[Path, dict], request_for_warmth: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The compiling processes are kept from doing their work; the proof must notice."""
    from dflash.training import prewarm as room

    compile_and_prove = room._run_all

    def only_prove(requests, cache, threads):
        if threads:
            return [{"graphs": 0, "seconds": 0.0, "warm_s": {}} for _ in requests]
        return compile_and_prove([{**requests[0], "roles": ["target"]}], cache, threads)

    monkeypatch.setattr(room, "_run_all", only_prove)
    with pytest.raises(CompilationError, match="a second pass compiled again"):
        prewarm(request_for_warmth, tmp_path, Silent())


def test_a_warm_up_that_fails_says_so_and_leaves_no_process(request_for_warmth: dict, tmp_path: Path):
    with pytest.raises(CompilationError, match="the warm-up of target ended with status 2"):
        prewarm({**request_for_warmth, "target": str(tmp_path / "nowhere")}, tmp_path, Silent())


@pytest.mark.nightly
def test_ten_cold_starts_in_a_row_neither_fail_nor_hang(target_folder: Path, tmp_path: Path):
    for attempt in range(10):
        result = train(target_folder, tmp_path / f"out{attempt}", tmp_path / f"cache{attempt}")
        assert result["step"] == COMPILED.steps
        assert result["cache"]["autograd_misses"] == 4, "the start was not cold"
