"""An evaluation is real decoding: the same output as transformers' own, and the tokens gained for it."""

from pathlib import Path

import pytest

from dflash.errors import DataError
from dflash.model.layout import write_layout
from dflash.progress import Silent
from dflash.training.config import EvaluateConfig
from dflash.training.evaluation import evaluate
from dflash.training.records import write_records
from tests.tiny import new_draft

PROMPTS = ["def f(x):", "import os\n", "é: two bytes", "a"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "heldout.jsonl"
    write_records(path, ({"id": p, "conversations": [{"role": "user", "content": p}]} for p in PROMPTS))
    return path


@pytest.fixture
def draft_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "draft"
    folder.mkdir()
    write_layout(new_draft().float(), folder)
    return folder


def test_every_output_equals_the_targets_own_and_every_token_is_counted(
    target_folder: Path, draft_folder: Path, prompts: Path
):
    config = EvaluateConfig(new_tokens=24, untrained_prompts=2)
    figures = evaluate(config, target_folder, draft_folder, prompts, Silent())
    assert (figures["greedy_identical"], figures["greedy_total"]) == (4, 4)
    assert len(figures["acceptance_by_prompt"]) == 4
    assert all(1.0 <= length <= 4.0 for length in figures["acceptance_by_prompt"])
    assert 1.0 <= figures["acceptance_length_untrained"] < 1.5, "a drafter that learnt nothing is hardly ever right"
    assert figures["plain_tokens_per_s"] > 0
    assert figures["speculative_tokens_per_s"] > 0


def test_an_evaluation_repeats(target_folder: Path, draft_folder: Path, prompts: Path):
    config = EvaluateConfig(new_tokens=12, untrained_prompts=1)
    one, other = (evaluate(config, target_folder, draft_folder, prompts, Silent()) for _ in range(2))
    assert one["acceptance_by_prompt"] == other["acceptance_by_prompt"]


def test_prompts_without_a_conversation_are_refused_by_file(target_folder: Path, draft_folder: Path, tmp_path: Path):
    path = tmp_path / "texts.jsonl"
    write_records(path, [{"id": "a", "text": "no question"}])
    with pytest.raises(DataError, match=r"texts.jsonl: no conversation to decode"):
        evaluate(EvaluateConfig(), target_folder, draft_folder, path, Silent())
