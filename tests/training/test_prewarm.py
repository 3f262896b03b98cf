"""Cold, eight threads compile in turn and train; pre-warmed, the same training compiles nothing."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from dflash.compilation.parcels import wanted
from dflash.compilation.vault import Vault, differing
from dflash.errors import CompilationError, UsageError
from dflash.model.bytelevel import byte_tokenizer
from dflash.model.target import target_config
from dflash.progress import Silent
from dflash.training.bytelm import model_config
from dflash.training.config import TargetConfig, Topology
from dflash.training.graphset import GraphSet, Place
from dflash.training.prewarm import CACHE, _compiled, _Processes, cache_environment, prewarm, use_cache
from tests.training.small import CONFIG, Watching, as_json

REPOSITORY = Path(__file__).parents[2]
COMPILED = replace(CONFIG, compile=True)


def run(target: Path, out: Path, cache: Path, config=COMPILED, *, warm_only: bool = False):
    """One training in a fresh process with the compile cache `cache`."""
    words = [str(target), str(out), "[48]", as_json(config), *(["warm"] if warm_only else [])]
    program = [sys.executable, "-B", "-m", "tests.training.small", *words]
    environment = os.environ | cache_environment(cache)
    return subprocess.run(program, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=240)


def train(target: Path, out: Path, cache: Path) -> dict:
    """The result of such a training."""
    done = run(target, out, cache)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", autouse=True)
def instruction_sets() -> Iterator[None]:
    """In front of a new cache, torch compiles and loads a program for each set of vector instructions of the processor,
    to know that the compiler knows it. One that knows the newest knows all, which is seen at once."""
    newest = [os.environ.get("CXX", "g++"), "-mamx-tile", "-mavx512bf16", "-x", "c++", "-fsyntax-only", os.devnull]
    with pytest.MonkeyPatch.context() as patch:
        if subprocess.run(newest, capture_output=True).returncode == 0:
            patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
        yield


@pytest.fixture(scope="module")
def graphs(target_folder: Path) -> GraphSet:
    return GraphSet.of(COMPILED, target_config(target_folder), [48])


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Vault:
    place = tmp_path_factory.mktemp("vault")
    return Vault(place / "vault", place / "key")


@pytest.fixture(scope="module")
def warmed(graphs: GraphSet, vault: Vault, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A pre-warmed folder, kept in the vault, and the report of its pre-warm."""
    out = tmp_path_factory.mktemp("prewarm")
    return out, prewarm(graphs, out, Silent(), vault)


def test_prewarm_finds_every_graph_in_a_second_pass(warmed: tuple[Path, dict]):
    _, report = warmed
    assert report["graphs"] == 5, "a target layer, fusion, a draft layer, scoring and the update; one bucket"
    assert report["hit_rate"] == 1.0
    assert report["cache_bytes"] > 0


@pytest.fixture(scope="module")
def trained(
    warmed: tuple[Path, dict], target_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, subprocess.CompletedProcess[str]]]:
    """Trainings that must be warm, at the same time: in front of the cache, and in front of its kernels alone, so that
    the C++ compiler is spared while no graph is found. Where each wrote, and how it ended."""
    warm, place = warmed[0] / CACHE, tmp_path_factory.mktemp("trained")
    cold = shutil.copytree(warm, place / "cache", ignore=shutil.ignore_patterns("fxgraph", "aotautograd"))
    with ThreadPoolExecutor() as pool:
        started = {
            name: (place / name, pool.submit(run, target_folder, place / name, cache, warm_only=True))
            for name, cache in (("warm", warm), ("cold", cold))
        }
        return {name: (out, done.result()) for name, (out, done) in started.items()}


def test_a_training_in_front_of_a_warm_cache_compiles_nothing(trained: dict):
    _, done = trained["warm"]
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    counts = result["cache"]
    assert result["heldout"]["loss"] > 0, "held-out rows were gone through too"
    assert counts["graphs"] == counts["autograd_hits"] == 5
    assert (counts["autograd_misses"], counts["inductor_misses"], counts["bypasses"]) == (0, 0, 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in wanted(folder)}


def test_a_cache_that_was_deleted_comes_back_from_the_vault_and_nothing_is_compiled(
    warmed: tuple[Path, dict], graphs: GraphSet, vault: Vault
):
    """Also for a run with another learning rate, seed and length, none of which shapes a graph."""
    out, report = warmed
    before = contents(out / CACHE)
    shutil.rmtree(out / CACHE)
    other = replace(COMPILED, seed=9, steps=7, optimizer=replace(COMPILED.optimizer, lr=1e-5))
    again = prewarm(replace(graphs, train=other), out, Silent(), vault)
    assert (again["from_vault"], again["snapshot"], again["hit_rate"]) == (True, report["snapshot"], 1.0)
    assert again["compiled"] == [], "nothing was compiled"
    after = contents(out / CACHE)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("change", "ingredient"),
    [
        ({"anchors": COMPILED.anchors + 1}, "graphs"),
        ({"kl": 0.5}, "graphs"),
        ({"draft": replace(COMPILED.draft, layers=COMPILED.draft.layers + 1)}, "graphs"),
    ],
)
def test_what_shapes_a_graph_is_in_the_vaults_key(graphs: GraphSet, change: dict, ingredient: str):
    other = replace(graphs, train=replace(COMPILED, **change))
    assert ingredient in {line.partition(":")[0] for line in differing(graphs.key(), other.key())}


def test_a_target_that_is_spread_over_gpus_has_no_graphs_and_is_not_made_for_them(graphs: GraphSet):
    spread = replace(COMPILED, topology=Topology(2, 2, target_gpus=2))
    both = [("drafter", 4, 4), ("drafter", 5, 5)]
    assert replace(graphs, train=spread).layouts() == [both]
    assert replace(graphs, train=spread).places() == both[:1]
    assert replace(graphs, train=replace(spread, device="cuda")).places() == both
    assert replace(graphs, train=spread).key() != graphs.key()


def test_another_bucket_is_another_set(graphs: GraphSet):
    assert replace(graphs, buckets=(48, 64)).key() != graphs.key()


def test_what_only_steers_the_training_is_not(graphs: GraphSet):
    other = replace(COMPILED, seed=9, steps=7, prefetch=1, optimizer=replace(COMPILED.optimizer, lr=1e-5))
    more = replace(other, topology=replace(COMPILED.topology, drafters=COMPILED.topology.drafters + 1))
    assert replace(graphs, train=more).key() == graphs.key()


def test_a_target_that_is_only_declared_has_the_key_of_the_one_that_was_trained(tmp_path: Path):
    """Pre-warm may run before the target has been trained, and on another machine."""
    declared = model_config(TargetConfig(), byte_tokenizer())
    with torch.device("meta"):
        model = Qwen3ForCausalLM(declared)
    model.to_empty(device="cpu").save_pretrained(tmp_path)
    sets = [GraphSet.of(COMPILED, config, [48]) for config in (declared, target_config(tmp_path))]
    assert sets[0].key() == sets[1].key()


def test_a_set_survives_json(graphs: GraphSet):
    again = GraphSet.from_json(json.loads(json.dumps(graphs.to_json())))
    assert again.key() == graphs.key()
    assert again.train == COMPILED


def test_on_gpus_every_worker_has_graphs_of_its_own_and_on_a_cpu_a_role_shares_them(graphs: GraphSet):
    assert graphs.places() == [("target", 0, 0), ("drafter", 5, 5)]
    on_gpus = replace(graphs, train=replace(COMPILED, device="cuda"))
    places = [("target", rank, rank) for rank in range(5)] + [("drafter", rank, rank) for rank in (5, 6, 7)]
    assert on_gpus.places() == places
    assert on_gpus.layouts() == [places]
    colocated = replace(on_gpus, train=replace(on_gpus.train, topology=Topology(0, 2)))
    assert colocated.places() == [("drafter", 0, 0), ("drafter", 1, 1)], "whose graphs are their target's, too"


def test_on_the_gpus_of_several_hosts_it_is_each_role_on_each_number_and_every_host_has_a_layout(graphs: GraphSet):
    on_gpus = replace(graphs, train=replace(COMPILED, device="cuda"))
    halves = replace(on_gpus, hosts=(4, 4))
    targets = [("target", rank, rank) for rank in range(4)]
    others = [("target", 4, 0), ("drafter", 5, 1), ("drafter", 6, 2), ("drafter", 7, 3)]
    assert halves.layouts() == [targets, others]
    assert halves.places() == [*targets, *others[1:]], "a target of the second host has the graphs of one of the first"
    assert halves.key()["graphs"] != on_gpus.key()["graphs"]


def test_hosts_that_are_alike_are_warmed_once(graphs: GraphSet):
    four = replace(COMPILED, device="cuda", topology=Topology(0, 4))
    assert replace(graphs, train=four, hosts=(2, 2)).layouts() == [[("drafter", 0, 0), ("drafter", 1, 1)]]


def test_a_gpu_is_given_to_one_worker_at_a_time(graphs: GraphSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each may need all of its memory; which one fits is not known before."""
    on_gpus = replace(graphs, train=replace(COMPILED, device="cuda", topology=Topology(4, 4)), hosts=(4, 4))
    busy: set[int] = set()
    warmed: list[tuple[str, int]] = []

    def warm_up(self, graphs: GraphSet, places: list[Place], threads: int, tell: object) -> None:
        (place,) = places
        assert place.number not in busy
        busy.add(place.number)
        time.sleep(0.3 if place.role == "target" and place.number == 0 else 0.01)
        busy.remove(place.number)
        warmed.append((place.role, place.number))

    monkeypatch.setattr(_Processes, "warm_up", warm_up)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    _compiled(on_gpus, tmp_path / CACHE, Silent())
    assert sorted(warmed) == [(role, number) for role in ("drafter", "target") for number in range(4)]


def test_hosts_are_nothing_to_a_set_on_cpus(graphs: GraphSet):
    halves = replace(graphs, hosts=(4, 4))
    assert (halves.places(), halves.key()) == (graphs.places(), graphs.key())


def test_some_of_the_workers_are_warmed_by_their_numbers_on_their_host(graphs: GraphSet, warmed: tuple[Path, dict]):
    out, _ = warmed
    with _Processes(out / CACHE) as processes:
        told = processes.warm_up(graphs, [Place("target", 4, 0), Place("drafter", 6, 1)], threads=1)
    assert {(each["worker"], each["compiled"]) for each in told} == {("target 4", False), ("drafter 6", False)}


def test_a_machine_with_fewer_gpus_than_one_of_the_hosts_has_workers_is_told_before_anything_is_compiled(
    graphs: GraphSet, tmp_path: Path
):
    train = replace(COMPILED, device="cuda", anchors=32, topology=Topology(40, 40))
    halves = replace(graphs, train=train, buckets=(128,), hosts=(60, 20))
    with (
        _Processes(tmp_path) as processes,
        pytest.raises(UsageError, match=r"60 workers need 60 GPUs, and torch .* sees"),
    ):
        processes.warm_up(halves, halves.layouts()[0], threads=1)


@pytest.mark.nightly
def test_colocated_workers_are_warmed_with_their_target_and_compile_nothing_in_training(
    graphs: GraphSet, target_folder: Path, tmp_path: Path
):
    config = replace(COMPILED, topology=Topology(0, 2))
    report = prewarm(replace(graphs, train=config), tmp_path, Silent())
    assert {each["worker"] for each in report["compiled"]} == {"drafter 0"}
    assert (report["graphs"], report["hit_rate"]) == (5, 1.0)
    done = run(target_folder, tmp_path / "out", tmp_path / CACHE, config, warm_only=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["cache"]["autograd_misses"] == 0


@pytest.mark.nightly
def test_a_proof_that_compiles_names_what_was_not_in_the_cache(
    graphs: GraphSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Only the target's graphs are compiled; the proof, a whole layout, must notice."""
    monkeypatch.setattr(GraphSet, "places", lambda self: [Place("target", 0, 0)])
    with pytest.raises(CompilationError, match=r"compiled again: drafter 5: fuse for .*; drafter 5: draft_layer for"):
        prewarm(graphs, tmp_path, Silent())


@pytest.mark.nightly
def test_a_kept_cache_that_lacks_kernels_is_not_taken_for_warm(
    warmed: tuple[Path, dict], graphs: GraphSet, tmp_path: Path
):
    """Every graph is found in it, which is all that torch counts; the compiler would still have to run."""
    shutil.copytree(warmed[0] / CACHE, tmp_path / "cache")
    for kernel in (tmp_path / "cache").rglob("*.so"):
        kernel.unlink()
    vault = Vault(tmp_path / "vault", tmp_path / "key")
    lacking = vault.save(tmp_path / "cache", graphs.key(), {}, 4)
    watching = Watching()
    report = prewarm(graphs, tmp_path / "out", watching, vault)
    assert any("the kept cache is not warm: a second process compiled again: the kernel" in n for n in watching.notes)
    assert not report["from_vault"]
    assert report["snapshot"] != lacking.id


def test_a_training_that_must_be_warm_refuses_to_compile_and_names_the_graph(trained: dict):
    out, done = trained["cold"]
    assert done.returncode != 0
    assert "CompilationError: 'target_layer' for (1, 48, " in done.stderr
    assert "was not in the compile cache" in done.stderr
    assert not (out / "draft").exists()


def test_a_triton_cache_that_the_user_named_elsewhere_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    use_cache(tmp_path / "mine")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "mine")
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "mine" / "triton")


@pytest.mark.nightly
def test_a_warm_up_that_fails_says_so_and_leaves_no_process(graphs: GraphSet, tmp_path: Path):
    broken = replace(graphs, train=replace(COMPILED, draft=replace(COMPILED.draft, features=9)))
    with pytest.raises(UsageError, match=r"train.draft.features: a target of 6 layers has no 9"):
        prewarm(broken, tmp_path, Silent())


@pytest.mark.nightly
def test_ten_cold_starts_in_a_row_neither_fail_nor_hang(target_folder: Path, tmp_path: Path):
    for attempt in range(10):
        result = train(target_folder, tmp_path / f"out{attempt}", tmp_path / f"cache{attempt}")
        assert result["step"] == COMPILED.steps
        assert result["cache"]["autograd_misses"] == 5, "the start was not cold"
