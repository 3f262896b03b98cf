"""Eight workers as threads: they repeat bit for bit, resume exactly, stop together, and leave nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dflash.errors import CheckpointError, DFlashError, UsageError
from dflash.model.layout import load_draft
from dflash.training.checkpoints import Checkpoints
from dflash.training.config import DraftConfig, Topology, TrainConfig
from dflash.training.trainer import Trainer
from tests.training.logged import read_metrics
from tests.training.small import CONFIG, Watching, as_json, rows, train

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.fixture(scope="module")
def whole(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a training that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole")
    train(target_folder, out)
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "draft" / "model.safetensors")


def same_bits(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def figures(out: Path) -> list[tuple]:
    """What is the same in every run: all of a row but the speed."""
    return [
        (row["step"], row["loss"], row["accuracy"], row["grad_norm"], row.get("heldout"))
        for row in read_metrics(out / "metrics.jsonl")
    ]


def start(target: Path, out: Path, config: TrainConfig) -> subprocess.Popen:
    """The training as a process of its own that prints each finished step."""
    program = [sys.executable, "-B", "-m", "tests.training.small", str(target), str(out), "[32, 48]", as_json(config)]
    return subprocess.Popen(program, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def test_a_training_writes_a_drafter_and_a_row_for_each_step(whole: Path):
    assert [row["step"] for row in read_metrics(whole / "metrics.jsonl")] == list(range(1, 13))
    assert load_draft(whole / "draft").block_size == 4


def test_training_lowers_the_loss(target_folder: Path, tmp_path: Path):
    train(target_folder, tmp_path, steps=40)
    losses = [row["loss"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


def test_two_trainings_are_equal_to_the_last_bit(target_folder: Path, tmp_path: Path, whole: Path):
    train(target_folder, tmp_path)
    assert same_bits(tmp_path, whole)
    assert figures(tmp_path) == figures(whole)


def test_another_number_of_targets_changes_no_bit(target_folder: Path, tmp_path: Path, whole: Path):
    train(target_folder, tmp_path, topology=Topology(targets=2, drafters=3))
    assert same_bits(tmp_path, whole)


def test_drafters_that_run_the_target_themselves_change_no_bit(target_folder: Path, tmp_path: Path, whole: Path):
    result = train(target_folder, tmp_path, topology=Topology(targets=0, drafters=3))
    assert same_bits(tmp_path, whole)
    assert figures(tmp_path) == figures(whole)
    assert result["warm_s"].keys() == {"drafter 0", "drafter 1", "drafter 2"}


def test_one_worker_that_does_both_trains_to_the_bits_of_a_target_and_a_drafter(target_folder: Path, tmp_path: Path):
    for name, topology in (("one", Topology(0, 1)), ("two", Topology(1, 1))):
        train(target_folder, tmp_path / name, topology=topology, accumulate=2, steps=4)
    assert same_bits(tmp_path / "one", tmp_path / "two")
    assert figures(tmp_path / "one") == figures(tmp_path / "two")


def test_a_split_training_goes_on_colocated_to_the_same_bits(target_folder: Path, tmp_path: Path, whole: Path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "scratch" / "checkpoints" / "step-00000012")
    result = train(target_folder, tmp_path, topology=Topology(targets=0, drafters=3))
    assert result["resumed_at"] == 8
    assert same_bits(tmp_path, whole)


def test_another_prefetch_depth_changes_no_bit(target_folder: Path, tmp_path: Path, whole: Path):
    train(target_folder, tmp_path, prefetch=1)
    assert same_bits(tmp_path, whole)


@pytest.mark.parametrize(("killed_after", "resumed_at"), [pytest.param(1, [0], marks=pytest.mark.nightly), (9, [4, 8])])
def test_a_killed_training_resumes_to_the_same_bits(
    target_folder: Path, tmp_path: Path, whole: Path, killed_after: int, resumed_at: list[int]
):
    """A checkpoint is written while training goes on, so that the last one may be lost; never the one before."""
    process = start(target_folder, tmp_path, CONFIG)
    assert process.stdout
    for line in process.stdout:
        if int(line) == killed_after:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    watching = Watching()
    result = train(target_folder, tmp_path, watching)
    assert result["resumed_at"] in resumed_at
    assert same_bits(tmp_path, whole)
    assert figures(tmp_path) == figures(whole)


def test_another_number_of_workers_goes_on_with_the_same_micro_batches(
    target_folder: Path, tmp_path: Path, whole: Path
):
    """One drafter that accumulates three micro-batches does what three drafters did, but for the order of a sum."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "scratch" / "checkpoints" / "step-00000012")
    result = train(target_folder, tmp_path, topology=Topology(targets=2, drafters=1), accumulate=3)
    assert result["resumed_at"] == 8
    for now, before in zip(
        read_metrics(tmp_path / "metrics.jsonl"), read_metrics(whole / "metrics.jsonl"), strict=True
    ):
        assert now["loss"] == pytest.approx(before["loss"], rel=1e-4), now["step"]
    newest = Checkpoints(tmp_path / "scratch" / "checkpoints").latest(Watching())
    assert newest
    assert newest.state["micro_batches"] == 12 * 3


def test_fewer_drafters_take_smaller_steps_and_leave_no_micro_batch_out(
    target_folder: Path, tmp_path: Path, whole: Path
):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "scratch" / "checkpoints" / "step-00000012")
    watching = Watching()
    train(target_folder, tmp_path, watching, topology=Topology(targets=1, drafters=2))
    newest = Checkpoints(tmp_path / "scratch" / "checkpoints").latest(watching)
    assert newest
    assert newest.state["micro_batches"] == 8 * 3 + 4 * 2


def test_an_interrupt_saves_the_step_it_came_in_and_loses_nothing(target_folder: Path, tmp_path: Path, whole: Path):
    process = start(target_folder, tmp_path, CONFIG)
    assert process.stdout
    for line in process.stdout:
        if int(line) == 6:
            process.send_signal(signal.SIGINT)
            break
    last = [*process.stdout.read().split(), "6"][0]
    assert process.wait(30) == 130
    process.stdout.close()
    stopped_at = max(int(last), 6)
    result = train(target_folder, tmp_path)
    assert result["resumed_at"] >= stopped_at
    assert same_bits(tmp_path, whole)


def test_a_finished_training_that_is_run_again_gives_the_same_drafter(target_folder: Path, tmp_path: Path, whole: Path):
    train(target_folder, tmp_path)
    assert train(target_folder, tmp_path)["resumed_at"] == CONFIG.steps
    assert same_bits(tmp_path, whole)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(target_folder: Path, tmp_path: Path, whole: Path):
    train(target_folder, tmp_path)
    newest = tmp_path / "scratch" / "checkpoints" / "step-00000012" / "model.safetensors"
    content = bytearray(newest.read_bytes())
    content[-3] ^= 1
    newest.write_bytes(content)
    watching = Watching()
    assert train(target_folder, tmp_path, watching)["resumed_at"] == 8
    assert any(str(newest) in note and "damaged" in note for note in watching.notes)
    assert same_bits(tmp_path, whole)


def test_a_checkpoint_of_another_configuration_is_refused_by_field(target_folder: Path, tmp_path: Path):
    train(target_folder, tmp_path)
    with pytest.raises(CheckpointError, match=r"another configuration: anchors, seed"):
        train(target_folder, tmp_path, anchors=5, seed=1)


def test_a_worker_that_fails_ends_all_and_its_own_error_is_raised(target_folder: Path, tmp_path: Path):
    packed = rows()
    packed[48].tokens[:] = 9999  # no row of the embedding
    with pytest.raises(IndexError):
        Trainer(CONFIG, target_folder, packed, Watching()).train(tmp_path)


def test_a_full_disk_ends_all_with_the_systems_error(target_folder: Path, tmp_path: Path):
    if os.geteuid() != 0:
        assert os.environ.get("CI") != "true", "mounting a small tmpfs needs root"
        pytest.skip("mounting a small tmpfs needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        with pytest.raises(OSError, match="No space left"):
            train(target_folder, tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_steps_without_any_anchor_are_taken_in_lock_step(target_folder: Path, tmp_path: Path):
    result = Trainer(CONFIG, target_folder, rows(trainable=False), Watching()).train(tmp_path)
    assert result["step"] == CONFIG.steps
    assert result["loss"] == 0.0


def test_a_loss_that_is_not_finite_names_step_worker_and_micro_batch(target_folder: Path, tmp_path: Path):
    poisoned = replace(CONFIG, optimizer=replace(CONFIG.optimizer, lr=1e30, warmup=0.0))
    with pytest.raises(DFlashError, match=r"not finite at step \d+ \(worker \d: rows [\d, ]+ of bucket \d+"):
        Trainer(poisoned, target_folder, rows(), Watching()).train(tmp_path)


@pytest.mark.parametrize(
    ("draft", "complaint"),
    [
        (DraftConfig(layers=1, features=4, block=4, mask_token_id=260), "no 4 different layers"),
        (DraftConfig(layers=1, features=2, block=4, mask_token_id=272), "not a row of the target's vocabulary of 272"),
        (DraftConfig(layers=1, features=2, block=4), "mask_token_id"),
    ],
)
def test_a_configuration_that_does_not_fit_the_target_is_refused_before_any_work(
    target_folder: Path, draft: DraftConfig, complaint: str
):
    with pytest.raises(UsageError, match=complaint):
        Trainer(replace(CONFIG, draft=draft), target_folder, rows(), Watching())


def test_a_mask_token_that_the_data_uses_is_refused_by_row(target_folder: Path):
    packed = rows()
    packed[48].tokens[2, 5] = CONFIG.draft.mask_token_id
    with pytest.raises(UsageError, match=r"mask token 260 is used by the data \(bucket 48, row 2\)"):
        Trainer(CONFIG, target_folder, packed, Watching())


def test_fewer_gpus_than_workers_is_one_clear_line(target_folder: Path, tmp_path: Path):
    if torch.cuda.device_count() >= 8:
        pytest.skip("this machine has GPUs enough")
    with pytest.raises(UsageError, match="8 workers need 8 GPUs"):
        train(target_folder, tmp_path, packed=rows(buckets=[128]), device="cuda", anchors=32)


@pytest.mark.parametrize(
    ("anchors", "bucket", "complaint"),
    [
        (30, 128, r"train\.anchors: 30 anchors of 4 tokens are 120, no multiple of 128; choose a multiple of 32"),
        (32, 96, r"data\.buckets: rows of 96 tokens are no multiple of 128; use multiples of 128"),
    ],
)
def test_shapes_that_do_not_fill_the_gpus_tiles_are_refused_before_any_gpu_is_asked_for(
    target_folder: Path, tmp_path: Path, anchors: int, bucket: int, complaint: str
):
    with pytest.raises(UsageError, match=complaint):
        train(target_folder, tmp_path, packed=rows(buckets=[bucket]), device="cuda", anchors=anchors)


def test_rows_longer_than_a_targets_window_are_refused_before_any_work(target_folder: Path, tmp_path: Path):
    described = json.loads((target_folder / "config.json").read_text())
    slides = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 0, "layer_types": None}
    (tmp_path / "config.json").write_text(json.dumps(described | slides))
    with pytest.raises(UsageError, match="rows of 48 tokens are longer than the 40 that the target's layers look back"):
        Trainer(CONFIG, tmp_path, rows(), Watching())


def test_micro_batches_that_are_accumulated_are_one_larger_step(target_folder: Path, tmp_path: Path, whole: Path):
    """Two of one row each weigh as two rows of one micro-batch: the same sum but for its order."""
    packed = rows(count=40, buckets=[48])
    one = train(target_folder, tmp_path / "one", packed=packed, topology=Topology(1, 2), accumulate=2, steps=3)
    other = train(target_folder, tmp_path / "other", packed=packed, topology=Topology(1, 4), steps=3)
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    mine, theirs = weights(tmp_path / "one"), weights(tmp_path / "other")
    assert all(torch.allclose(mine[name], theirs[name], atol=1e-4) for name in mine)
    assert not same_bits(tmp_path / "one", whole)


def test_a_training_in_bfloat16_learns_and_resumes_to_the_same_bits(target_folder: Path, tmp_path: Path):
    settings = {"dtype": "bfloat16", "accumulate": 2}
    train(target_folder, tmp_path / "whole", steps=12, **settings)
    losses = [row["loss"] for row in read_metrics(tmp_path / "whole" / "metrics.jsonl")]
    assert losses[-1] < losses[0]
    assert {tensor.dtype for tensor in weights(tmp_path / "whole").values()} == {torch.bfloat16}
    shutil.copytree(tmp_path / "whole" / "scratch", tmp_path / "cut" / "scratch")
    shutil.rmtree(tmp_path / "cut" / "scratch" / "checkpoints" / "step-00000012")
    assert train(target_folder, tmp_path / "cut", steps=12, **settings)["resumed_at"] == 8
    assert same_bits(tmp_path / "whole", tmp_path / "cut")


def test_the_drafters_own_confidence_can_weigh_the_slots(target_folder: Path, tmp_path: Path):
    train(target_folder, tmp_path, loss="dpace", gamma=None, steps=20)
    losses = [row["loss"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert sum(losses[-4:]) < sum(losses[:4])


def test_a_step_that_is_not_finite_can_be_passed_over(target_folder: Path, tmp_path: Path):
    spoiled = Watching()
    result = train(
        target_folder, tmp_path, spoiled, not_finite="skip", optimizer=replace(CONFIG.optimizer, lr=1e30, warmup=0.0)
    )
    assert result["step"] == CONFIG.steps
    assert any("was passed over" in note for note in spoiled.notes)
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())


def test_a_step_is_timed_and_counted(whole: Path):
    for row in read_metrics(whole / "metrics.jsonl"):
        assert row["tokens_per_s"] > 0
        assert len(row["accuracy"]) == 3
        assert 1.0 <= row["accept_len"] <= 4.0
    assert json.loads((whole / "draft" / "config.json").read_text())["block_size"] == 4
