"""An evaluation is real decoding: the same output as transformers' own, and the tokens gained for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from dflash.errors import CheckpointError, DataError, UsageError
from dflash.model.bytelevel import END, byte_tokenizer
from dflash.model.decoding import Generation
from dflash.model.layout import CONFIG, write_layout
from dflash.progress import Silent
from dflash.training.checkpoints import Checkpoints
from dflash.training.config import EvaluateConfig
from dflash.training.evaluation import accepted_by_slot, compare, evaluate
from dflash.training.records import write_records
from tests.tiny import constant_target, new_draft

PROMPTS = ["def f(x):", "import os\n", "é: two bytes", "a"]
FEW = EvaluateConfig(new_tokens=8)


def write_prompts(path: Path, *prompts: str) -> Path:
    write_records(path, ({"id": p, "conversations": [{"role": "user", "content": p}]} for p in prompts))
    return path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "heldout.jsonl", *PROMPTS)


@pytest.fixture
def draft_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "draft"
    folder.mkdir()
    write_layout(new_draft().float(), folder)
    return folder


def test_every_output_equals_the_targets_own_and_every_token_is_counted(
    target_folder: Path, draft_folder: Path, prompts: Path
):
    config = EvaluateConfig(new_tokens=16, untrained_prompts=2)
    figures = evaluate(config, target_folder, draft_folder, prompts, Silent())
    assert (figures["greedy_identical"], figures["greedy_total"]) == (4, 4)
    assert (figures["prompts"], figures["tokens"]) == (4, 4 * 16)
    assert len(figures["acceptance_by_prompt"]) == 4
    assert all(1.0 <= length <= 4.0 for length in figures["acceptance_by_prompt"])
    assert 1.0 <= figures["acceptance_length_untrained"] < 1.5, "a drafter that learnt nothing is hardly ever right"
    assert figures["plain_tokens_per_s"] > 0
    assert figures["speculative_tokens_per_s"] > 0
    assert figures["speedup"] == pytest.approx(
        figures["speculative_tokens_per_s"] / figures["plain_tokens_per_s"], rel=0.01
    )


def test_a_sampled_evaluation_repeats_and_compares_no_outputs(target_folder: Path, draft_folder: Path, prompts: Path):
    config = EvaluateConfig(new_tokens=8, untrained_prompts=0, temperature=1.0)
    one, other = (evaluate(config, target_folder, draft_folder, prompts, Silent()) for _ in range(2))
    assert one["acceptance_by_prompt"] == other["acceptance_by_prompt"]
    assert one["accepted_by_slot"] == other["accepted_by_slot"]
    assert not {"greedy_identical", "greedy_total", "acceptance_length_untrained"} & one.keys()


def test_each_file_is_a_data_set_whatever_the_targets_folder_asks_generation_for(
    target_folder: Path, draft_folder: Path, prompts: Path, tmp_path: Path
):
    """Penalties and sampling of its generation_config.json would change plain decoding, and only that."""
    target = shutil.copytree(target_folder, tmp_path / "target")
    asked = {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 3.0}
    (target / "generation_config.json").write_text(json.dumps(asked))
    other = write_prompts(tmp_path / "other.jsonl", "x")
    report = compare(FEW, target, draft_folder, [prompts, other], Silent())
    assert [(each["name"], each["prompts"], each["identical"]) for each in report["datasets"]] == [
        ("heldout", 4, 4),
        ("other", 1, 1),
    ]
    assert (report["all"]["tokens"], report["all"]["identical"], report["block"]) == (5 * 8, 5, 4)
    rounds = [each["rounds"] for each in report["datasets"]]
    assert report["all"]["rounds"] == sum(rounds)


def test_the_end_token_ends_an_answer_only_when_asked_to(draft_folder: Path, prompts: Path, tmp_path: Path):
    tokenizer = byte_tokenizer()
    target = tmp_path / "target"
    constant_target(tokenizer.convert_tokens_to_ids(END)).to(torch.float32).save_pretrained(target)
    tokenizer.save_pretrained(target)
    ended = compare(EvaluateConfig(new_tokens=8, stop=True), target, draft_folder, [prompts], Silent())["all"]
    whole = compare(FEW, target, draft_folder, [prompts], Silent())["all"]
    assert (ended["tokens"], whole["tokens"]) == (4, 4 * 8)
    assert (ended["rounds"], ended["acceptance_length"], ended["accepted_by_slot"]) == (0, 1.0, [None] * 3)
    assert ended["identical"] == whole["identical"] == 4


def test_a_slot_counts_when_all_before_it_were_accepted_and_not_beyond_a_stop_token():
    rounds = Generation([], gained=[1, 2, 4, 3], accepted=[0, 1, 3, 2])
    assert accepted_by_slot([rounds], block=4) == [0.75, round(2 / 3, 4), 0.5]
    stopped = Generation([], gained=[2], accepted=[3])
    assert accepted_by_slot([stopped], block=4) == [1.0, 1.0, None]
    refused = Generation([], gained=[1], accepted=[0])
    assert accepted_by_slot([refused, stopped], block=4) == [0.5, 1.0, None]


def test_a_trainings_checkpoint_is_verified_first(target_folder: Path, prompts: Path, tmp_path: Path):
    saved = Checkpoints(tmp_path / "checkpoints").save(
        3, {}, {}, extra=lambda folder: write_layout(new_draft().float(), folder)
    )
    link = tmp_path / "newest"
    link.symlink_to(saved)
    assert compare(FEW, target_folder, link, [prompts], Silent())["all"]["identical"] == 4
    (saved / CONFIG).write_text((saved / CONFIG).read_text().replace(":", " :"))
    with pytest.raises(CheckpointError, match=r"step-00000003/config.json: is damaged.*; name another checkpoint, "):
        compare(FEW, target_folder, saved, [prompts], Silent())


def test_a_drafter_of_another_target_is_refused_before_the_target_is_loaded(
    target_folder: Path, prompts: Path, tmp_path: Path
):
    target = tmp_path / "target"
    target.mkdir()
    shutil.copy(target_folder / "config.json", target)  # and no weights
    draft = new_draft().float()
    draft.config.num_target_layers = 36
    folder = tmp_path / "draft"
    folder.mkdir()
    write_layout(draft, folder)
    with pytest.raises(
        CheckpointError, match=r"draft: the drafter is not for this target: its num_target_layers is 36"
    ):
        compare(FEW, target, folder, [prompts], Silent())


def test_a_checkpoint_that_is_not_there_is_refused_by_name(target_folder: Path, prompts: Path, tmp_path: Path):
    with pytest.raises(CheckpointError, match="absent: there is no such folder; name a checkpoint, or an exported"):
        compare(FEW, target_folder, tmp_path / "absent", [prompts], Silent())


def test_without_a_gpu_cuda_is_refused(
    target_folder: Path, draft_folder: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="device cuda: torch sees no GPU here"):
        compare(EvaluateConfig(device="cuda"), target_folder, draft_folder, [prompts], Silent())


def test_prompts_without_a_conversation_are_refused_by_file(target_folder: Path, draft_folder: Path, tmp_path: Path):
    path = tmp_path / "texts.jsonl"
    write_records(path, [{"id": "a", "text": "no question"}])
    with pytest.raises(DataError, match=r"texts.jsonl: no conversation to decode"):
        evaluate(EvaluateConfig(), target_folder, draft_folder, path, Silent())
