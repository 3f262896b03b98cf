"""Reading what others publish: the same output to the last bit, or refused by the field or tensor that says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.errors import CheckpointError
from dflash.model.draft import DFlashDraftModel
from dflash.model.layout import CAUSAL, PLAIN, load_draft, write_layout
from tests.model.drafters import WINDOW, change, fields_of, in_shards, rewrite_tensors, sliding_draft
from tests.tiny import BLOCK, HIDDEN, new_draft


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda folder: change(folder, "rope_parameters"),
        lambda folder: change(folder, "rope_theta", "rope_scaling"),
        lambda folder: change(folder, "block_size"),
        lambda folder: change(folder, dflash_config={"mask_token_id": 260, "target_layer_ids": [1, 2, 3]}),
    ],
    ids=["old RoPE schema", "new RoPE schema", "block size in dflash_config", "block size at the top"],
)
def test_other_writers_schemas_are_read_and_both_are_written(folder: Path, rewrite: Callable[[Path], None]):
    complete = fields_of(folder)
    rewrite(folder)
    back = load_draft(folder)
    assert back.block_size == BLOCK
    write_layout(back, folder)
    assert fields_of(folder) == complete


def first_published(folder: Path) -> None:
    """The fields of z-lab's first drafters, written by transformers 4.57."""
    change(
        folder,
        "rope_parameters",
        dflash_config={"mask_token_id": 260, "target_layer_ids": [1, 2, 3]},
        dtype="bfloat16",
        tie_word_embeddings=True,
        transformers_version="4.57.3",
    )


def later_published(folder: Path) -> None:
    """The fields of the drafters for Qwen3.5 and later."""
    change(folder, "block_size", "rope_theta", "rope_scaling", dtype="bfloat16")


def with_the_targets_own(folder: Path) -> None:
    """A copy of the target's embedding and head, and of what rotary positions are made of."""
    own = {name: torch.zeros(272, HIDDEN) for name in ("embed_tokens.weight", "lm_head.weight")}
    rewrite_tensors(folder, lambda tensors: tensors | own | {"rotary_emb.inv_freq": torch.zeros(4)})


WRITERS: dict[str, Callable[[Path], None]] = {
    "the first fields": first_published,
    "the later fields": later_published,
    "shards": in_shards,
    "names below model": lambda folder: rewrite_tensors(
        folder, lambda tensors: {f"model.{name}": tensor for name, tensor in tensors.items()}
    ),
    "the target's own tensors": with_the_targets_own,
}


def output(draft: DFlashDraftModel) -> Tensor:
    """Draft hidden states of one block after nine positions of context."""
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(1, 9, 3 * HIDDEN, generator=generator)
    block = torch.randn(1, BLOCK, HIDDEN, generator=generator)
    positions = torch.arange(9 + BLOCK)[None]
    return draft(block, positions[:, 9:], draft.extend(None, features, positions[:, :9]))


@torch.no_grad()
def test_each_way_to_say_which_layers_slide_is_heard(sliding_folder: Path):
    first = output(load_draft(sliding_folder))
    assert torch.equal(first, output(sliding_draft()))
    change(sliding_folder, layer_types=["full_attention", "sliding_attention"])
    last = output(load_draft(sliding_folder))
    change(
        sliding_folder, "layer_types", max_window_layers=1
    )  # as transformers had it first: all layers from this one on
    assert torch.equal(output(load_draft(sliding_folder)), last)
    change(sliding_folder, "layer_types", use_sliding_window=False)
    none = output(load_draft(sliding_folder))
    assert torch.equal(none, output(new_draft(layers=2).float()))
    assert len({float(each.sum()) for each in (first, last, none)}) == 3


@pytest.mark.parametrize("writer", WRITERS)
@torch.no_grad()
def test_what_others_publish_gives_the_same_output_to_the_last_bit(folder: Path, writer: str):
    rewrite_tensors(folder, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    rounded = new_draft(layers=2).float()
    rounded.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()})
    WRITERS[writer](folder)
    assert torch.equal(output(load_draft(folder)), output(rounded))


@pytest.mark.parametrize("name", PLAIN)
def test_a_drafter_that_computes_something_else_is_refused_by_the_field_that_says_so(folder: Path, name: str):
    own = fields_of(folder)["dflash_config"]
    (plain,) = PLAIN[name]
    other = {bool: True, int: 30.0, str: "domino"}[type(plain)]
    change(folder, **{name: plain}, dflash_config=own | {name: None})
    assert load_draft(folder).block_size == BLOCK
    for fields in ({name: other}, {"dflash_config": own | {name: other}}):
        change(folder, name, "dflash_config", **{"dflash_config": own} | fields)
        with pytest.raises(CheckpointError, match=f"its {name} is {json.dumps(other)}, which this model does not"):
            load_draft(folder)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("slide", [0, 1, 2])
def test_causal_blocks_are_those_of_the_sliding_layers_and_what_says_otherwise_is_refused(
    folder: Path, name: str, slide: int
):
    types = ["sliding_attention"] * slide + ["full_attention"] * (2 - slide)
    slides = {"layer_types": types, "use_sliding_window": slide > 0, "sliding_window": WINDOW if slide else None}
    own = fields_of(folder)["dflash_config"]
    for value, right in ((None, True), (False, slide == 0), (True, slide == 2)):
        for fields in ({name: value, "dflash_config": own}, {"dflash_config": own | {name: value}}):
            change(folder, name, **slides | fields)
            if right:
                assert load_draft(folder).windows == [WINDOW] * slide + [None] * (2 - slide)
                continue
            with pytest.raises(CheckpointError, match=f"its {name} is {json.dumps(value)}, which this model does not"):
                load_draft(folder)


def without_tensor(folder: Path) -> None:
    def without(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        del tensors["layers.1.self_attn.k_norm.weight"]
        return tensors

    rewrite_tensors(folder, without)


def with_shards_but(folder: Path) -> None:
    in_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def with_a_shard_that_lacks(folder: Path) -> None:
    in_shards(folder)
    shard = folder / "model-00001-of-00002.safetensors"
    tensors = load_file(shard)
    del tensors["fc.weight"]
    save_file(tensors, shard)


def torn(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "No such file"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "No such file"),
    "a torn config": (lambda folder: (folder / "config.json").write_text('{"a": '), "JSONDecodeError"),
    "a config that is a list": (lambda folder: (folder / "config.json").write_text("[]"), "list"),
    "a wrong type": (lambda folder: change(folder, hidden_size="large"), "hidden_size"),
    "a plain Qwen3 config": (lambda folder: change(folder, "dflash_config"), "config.json has no dflash_config"),
    "another kind of drafter": (
        lambda folder: change(folder, architectures=["DFlash2DraftModel"]),
        "it is a DFlash2DraftModel, not a DFlashDraftModel",
    ),
    "no mask token": (
        lambda folder: change(folder, dflash_config={"target_layer_ids": [1, 2, 3]}),
        "dflash_config has no mask_token_id",
    ),
    "no captured layers": (
        lambda folder: change(folder, dflash_config={"mask_token_id": 260}),
        "dflash_config has no target_layer_ids",
    ),
    "two block sizes": (lambda folder: change(folder, block_size=8), "block_size is given twice, differently"),
    "no block size": (
        lambda folder: change(
            folder, "block_size", dflash_config={"mask_token_id": 260, "target_layer_ids": [1, 2, 3]}
        ),
        "block_size is given nowhere",
    ),
    "sliding layers without a window": (
        lambda folder: change(folder, layer_types=["sliding_attention", "full_attention"]),
        "it has sliding layers, but its sliding_window in use is null: below a block",
    ),
    "sliding layers whose window is not in use": (
        lambda folder: change(folder, layer_types=["sliding_attention", "full_attention"], sliding_window=8),
        "it has sliding layers, but its sliding_window in use is null: below a block",
    ),
    "a window that no block fits in": (
        lambda folder: change(folder, layer_types=["sliding_attention"] * 2, sliding_window=3, use_sliding_window=True),
        "it has sliding layers, but its sliding_window in use is 3: below a block",
    ),
    "layers of a third kind": (
        lambda folder: change(folder, layer_types=["chunked_attention", "full_attention"]),
        "it has layers of the kind chunked_attention, which this model does not compute",
    ),
    "torn weights": (torn, "incomplete"),
    "a missing tensor": (without_tensor, "layers.1.self_attn.k_norm.weight"),
    "a tensor too many": (
        lambda folder: rewrite_tensors(folder, lambda tensors: tensors | {"layers.0.attention_conv": torch.zeros(4)}),
        "layers.0.attention_conv",
    ),
    "another shape": (
        lambda folder: rewrite_tensors(folder, lambda tensors: tensors | {"fc.weight": torch.zeros(HIDDEN, HIDDEN)}),
        "fc.weight",
    ),
    "a missing shard": (with_shards_but, "No such file"),
    "a shard without a tensor": (with_a_shard_that_lacks, "00001-of-00002.safetensors lacks fc.weight"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_can_not_be_loaded_is_named_in_one_line(folder: Path, damage: str):
    apply, named = DAMAGE[damage]
    apply(folder)
    with pytest.raises(CheckpointError) as caught:
        load_draft(folder)
    line = str(caught.value)
    assert line.startswith(f"{folder}: not a drafter that can be loaded")
    assert named in line
    assert "\n" not in line
