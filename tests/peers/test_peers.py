"""Programs that others wrote read what this project exports, and compute with it what it computes itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from dflash.model.decoding import generate
from dflash.model.draft import DFlashDraftModel
from dflash.model.layout import load_draft
from dflash.model.target import load_target
from tests.peers.asking import (
    REPOSITORY,
    Answer,
    ask_speculators,
    ask_zlab,
    convert,
    given,
    published,
    recorded,
    run,
)
from tests.peers.learnt import LENGTH, PROMPTS, Pair, make_pair
from tests.race.environments import Environment, environment_of

pytestmark = pytest.mark.nightly

FIRST = len(PROMPTS[0])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peers")


@pytest.fixture(scope="module")
def pair(home: Path) -> Pair:
    return published(make_pair(home), home)


@pytest.fixture(scope="module")
def target(pair: Pair) -> PreTrainedModel:
    return load_target(pair.target, torch.float64)


@pytest.fixture(scope="module")
def draft(pair: Pair) -> DFlashDraftModel:
    return load_draft(pair.export).double()


@pytest.fixture(scope="module")
def zlab() -> Iterator[Environment]:
    with environment_of("peer-dflash") as made:
        yield made


@pytest.fixture(scope="module")
def speculators() -> Iterator[Environment]:
    with environment_of("peer-speculators") as made:
        yield made


@pytest.fixture(scope="module")
def converted(speculators: Environment, pair: Pair, home: Path) -> Path:
    return convert(speculators.python, pair, home)


@torch.no_grad()
def hidden_states(target: PreTrainedModel, draft: DFlashDraftModel, text: list[int], anchor: int) -> Tensor:
    """Draft hidden states (1, block, H) of the block that begins with `text[anchor]`."""
    states = target(torch.tensor([text[:anchor]]), output_hidden_states=True).hidden_states
    features = torch.cat([states[layer + 1] for layer in draft.target_layer_ids], dim=-1)
    block = torch.full((1, draft.block_size), draft.mask_token_id)
    block[:, 0] = text[anchor]
    positions = torch.arange(anchor + draft.block_size)[None]
    contexts = draft.extend(None, features, positions[:, :anchor])
    return draft(target.get_input_embeddings()(block), positions[:, anchor:], contexts)


def test_zlab_reads_every_tensor_and_generates_with_the_same_gain_in_every_round(
    zlab: Environment, pair: Pair, target: PreTrainedModel, draft: DFlashDraftModel, home: Path
):
    answer, hidden = ask_zlab(zlab.python, pair, home)
    assert answer == recorded("dflash")
    assert given(pair.export) == recorded("given")
    assert not any(answer["loading"].values())
    mine = hidden_states(target, draft, PROMPTS[0], len(PROMPTS[0]) - 1)
    torch.testing.assert_close(mine, hidden, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_zlab_generates_in_the_dtype_that_is_asked_for(zlab: Environment, pair: Pair, home: Path, dtype: str):
    """bfloat16 has ties, which two programs may break differently: its rounds are not compared."""
    answer, _ = ask_zlab(zlab.python, pair, home, dtype)
    assert not any(answer["loading"].values())
    assert all(sum(each["gained"]) == len(each["tokens"]) - 1 for each in answer["generated"])
    if dtype == "float32":
        assert answer["generated"] == recorded("dflash")["generated"]


def test_speculators_converts_it_with_every_tensor_as_it_was(converted: Path, pair: Pair):
    before, after = load_file(pair.export / "model.safetensors"), load_file(converted / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_speculators_trains_it_on_the_same_logits_and_the_same_tokens(
    speculators: Environment,
    converted: Path,
    pair: Pair,
    target: PreTrainedModel,
    draft: DFlashDraftModel,
    home: Path,
):
    text = PROMPTS[0] + generate(target, draft, PROMPTS[0], LENGTH - FIRST).tokens
    answer, tensors = ask_speculators(speculators.python, pair, home, converted, text, FIRST)
    assert answer == recorded("speculators")
    block = draft.block_size
    anchors = tensors["indices"][::block].tolist()
    assert anchors == list(range(FIRST, LENGTH - block))
    for number, anchor in enumerate(anchors):
        slots = slice(number * block, (number + 1) * block)
        mine = target.get_output_embeddings()(hidden_states(target, draft, text, anchor))
        torch.testing.assert_close(mine, tensors["logits"][:, slots], rtol=0, atol=1e-12)
        assert tensors["right"][0, slots].tolist()[1:] == text[anchor + 1 : anchor + block]


def test_what_the_pipeline_trained_is_worth_to_zlab_what_its_evaluation_says(zlab: Environment, tmp_path: Path):
    """Five minutes of training on two cores. Their own count differs in a generation's last round alone, which they
    cut where the wanted number of tokens is reached."""
    words = [sys.executable, "-m", "dflash", "train", "--root", str(tmp_path)]
    run(words, tmp_path, PYTHONPATH=str(REPOSITORY), HF_MODULES_CACHE=str(tmp_path / "modules"))
    (record,) = (tmp_path / "runs").glob("*/record.json")
    steps: dict[str, Answer] = {each["name"]: each for each in json.loads(record.read_text())["steps"]}
    folder = {name: tmp_path / each["folder"] for name, each in steps.items()}
    trained = Pair(folder["target"] / "model", folder["export"])
    tokenizer = AutoTokenizer.from_pretrained(trained.target)
    lines = (folder["data"] / "heldout.jsonl").read_text().splitlines()
    chats = [
        tokenizer.apply_chat_template(json.loads(line)["conversations"], add_generation_prompt=True)["input_ids"]
        for line in lines
    ]
    result = steps["evaluate"]["result"]
    answer, _ = ask_zlab(zlab.python, trained, tmp_path, "float64", chats, result["new_tokens"])
    gained = [rounds_of(each["gained"], result["new_tokens"]) for each in answer["whole_blocks"]]
    assert round(sum(map(sum, gained)) / sum(map(len, gained)), 4) == result["acceptance_length"]
    assert [round(sum(each) / len(each), 3) for each in gained] == result["acceptance_by_prompt"]


def rounds_of(gained: list[int], new_tokens: int) -> list[int]:
    """The rounds that begin before `new_tokens` tokens are there, of which the prompt's own successor is one."""
    known, found = 1, []
    for each in gained:
        if known >= new_tokens:
            break
        found.append(each)
        known += each
    return found
