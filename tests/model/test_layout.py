"""The published layout: every field and tensor that other readers look for, and nothing that can not be read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.errors import CheckpointError
from dflash.model.draft import DFlashDraftModel
from dflash.model.layout import CAUSAL, PLAIN, load_draft, write_layout
from tests.tiny import BLOCK, HIDDEN, new_draft

CODE = Path(__file__).parents[2]
WINDOW = 6


@pytest.fixture(scope="module")
def draft() -> DFlashDraftModel:
    return new_draft(layers=2).float()


@pytest.fixture
def folder(tmp_path: Path, draft: DFlashDraftModel) -> Path:
    made = tmp_path / "draft"
    made.mkdir()
    write_layout(draft, made)
    return made


@pytest.fixture
def sliding(tmp_path: Path) -> Path:
    """A folder of a drafter whose first layer slides."""
    made = tmp_path / "sliding"
    made.mkdir()
    write_layout(new_draft(layers=2, sliding=1, window=WINDOW).float(), made)
    return made


def fields_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def change(folder: Path, *without: str, **fields: Any) -> None:
    kept = {name: value for name, value in fields_of(folder).items() if name not in without}
    (folder / "config.json").write_text(json.dumps(kept | fields))


def isolated(code: str, *arguments: str, home: Path, project: bool) -> subprocess.CompletedProcess[str]:
    """Python with a home and a module cache of its own; without `project`, this repository can not be imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))}
    environment |= {"HOME": str(home), "HF_MODULES_CACHE": str(home / "modules"), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-W", "error::UserWarning", *([] if project else ["-I"]), "-c", code, *arguments]
    place = CODE if project else home
    return subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, timeout=120)


def test_the_config_has_every_published_field(folder: Path):
    fields = fields_of(folder)
    published = {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        "num_target_layers": 6,
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": 260, "target_layer_ids": [1, 2, 3], "block_size": BLOCK},
        "layer_types": ["full_attention", "full_attention"],
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": 2,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "rope_theta": 100.0,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "vocab_size": 272,
        "max_position_embeddings": 512,
    }
    assert {name: fields.get(name, "(missing)") for name in published} == published


def test_of_a_drafter_with_a_sliding_layer_it_says_which_and_how_far_it_looks(sliding: Path):
    written = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "use_sliding_window": True,
        "max_window_layers": 2,
    }
    assert {name: fields_of(sliding)[name] for name in written} == written
    assert load_draft(sliding).windows == [WINDOW, None]


def test_a_scaled_rope_is_written_in_both_schemas(tmp_path: Path):
    draft = new_draft()
    scaled = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 128}
    draft.config.rope_parameters = scaled
    write_layout(draft, tmp_path)
    fields = fields_of(tmp_path)
    assert fields["rope_scaling"] == fields["rope_parameters"] == scaled
    assert load_draft(tmp_path).config.rope_parameters == scaled
    change(tmp_path, "rope_parameters")
    assert load_draft(tmp_path).config.rope_parameters == scaled


def test_the_weights_have_the_published_names_and_no_embedding_or_head(folder: Path):
    layer = {f"self_attn.{part}_proj" for part in "qkvo"} | {f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    layer |= {"self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"}
    names = {f"layers.{index}.{part}.weight" for index in range(2) for part in layer}
    names |= {"fc.weight", "hidden_norm.weight", "norm.weight"}
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == names
    assert tensors["fc.weight"].shape == (HIDDEN, 3 * HIDDEN)


@pytest.mark.parametrize("of", ["folder", "sliding"])
def test_a_drafter_comes_back_bit_by_bit(of: str, draft: DFlashDraftModel, request: pytest.FixtureRequest):
    folder: Path = request.getfixturevalue(of)
    back = load_draft(folder)
    assert not back.training
    before, after = draft.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = folder.with_name("again")
    again.mkdir()
    write_layout(back, again)
    for name in ("config.json", "model.safetensors", "dflash.py"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


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


def rewrite_tensors(folder: Path, rewrite: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    weights = folder / "model.safetensors"
    save_file(rewrite(load_file(weights)), weights)


def in_shards(folder: Path) -> None:
    """Two files and an index, as `save_pretrained` leaves a large model."""
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    weights.unlink()
    places = {name: f"model-{1 + number % 2:05}-of-00002.safetensors" for number, name in enumerate(sorted(tensors))}
    for shard in set(places.values()):
        save_file({name: tensors[name] for name, place in places.items() if place == shard}, folder / shard)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


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
def test_each_way_to_say_which_layers_slide_is_heard(sliding: Path):
    first = output(load_draft(sliding))
    assert torch.equal(first, output(new_draft(layers=2, sliding=1, window=WINDOW).float()))
    change(sliding, layer_types=["full_attention", "sliding_attention"])
    last = output(load_draft(sliding))
    change(sliding, "layer_types", max_window_layers=1)  # as transformers had it first: all layers from this one on
    assert torch.equal(output(load_draft(sliding)), last)
    change(sliding, "layer_types", use_sliding_window=False)
    none = output(load_draft(sliding))
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


READ_ALONE = """
import sys, torch
from transformers import AutoModel
draft, report = AutoModel.from_pretrained(
    sys.argv[1], trust_remote_code=True, local_files_only=True, dtype=torch.float32, output_loading_info=True
)
assert not any(report.values()), report
assert not [name for name in sys.modules if name.split(".")[0] == "dflash"]
inputs = torch.load(sys.argv[2])
contexts = draft.extend(None, inputs["features"], inputs["positions"][:, :5])
torch.save(draft(inputs["block"], inputs["positions"][:, 5:], contexts), sys.argv[3])
"""


@torch.no_grad()
def test_transformers_alone_reads_it_by_the_code_shipped_beside_it(
    folder: Path, draft: DFlashDraftModel, tmp_path: Path
):
    features, block = torch.randn(1, 5, 3 * HIDDEN), torch.randn(1, BLOCK, HIDDEN)
    positions = torch.arange(5 + BLOCK)[None]
    torch.save({"features": features, "block": block, "positions": positions}, tmp_path / "inputs.pt")
    words = (str(folder), str(tmp_path / "inputs.pt"), str(tmp_path / "output.pt"))
    done = isolated(READ_ALONE, *words, home=tmp_path, project=False)
    assert done.returncode == 0, done.stderr
    mine = draft(block, positions[:, 5:], draft.extend(None, features, positions[:, :5]))
    assert torch.equal(torch.load(tmp_path / "output.pt"), mine)


PUBLISH = """
import sys
from pathlib import Path
from types import SimpleNamespace
from dflash.errors import CheckpointError
from dflash.model import layout
source, good, bad, altered, sliding, shorter = map(Path, sys.argv[1:])
print(layout.publish(source, good))
print(layout.publish(sliding, sliding))
published = layout.published_config
layout.published_config = lambda config, dtype: published(config, dtype) | {"sliding_window": config.sliding_window - 1}
try:
    layout.publish(sliding, shorter)
except CheckpointError as failure:
    print(failure)
layout.published_config = published
layout.draft_module = SimpleNamespace(__file__=altered)
try:
    layout.publish(source, bad)
except CheckpointError as failure:
    print(failure)
"""


def test_publishing_proves_that_transformers_gives_the_same_output(
    folder: Path, sliding: Path, draft: DFlashDraftModel, tmp_path: Path
):
    good, bad, altered, shorter = (tmp_path / name for name in ("good", "bad", "altered.py", "shorter"))
    for made in (good, bad, shorter):
        made.mkdir()
    code = (folder / "dflash.py").read_text()
    assert code.count("return self.norm(block)") == 1
    altered.write_text(code.replace("return self.norm(block)", "return self.norm(block) * 1.0001"))
    words = map(str, (folder, good, bad, altered, sliding, shorter))
    done = isolated(PUBLISH, *words, home=tmp_path, project=True)
    assert done.returncode == 0, done.stderr
    said = str({"tensors": 25, "parameters": sum(p.numel() for p in draft.parameters())})
    complaints = [f"{each}: reloaded by transformers, the drafter gives another output" for each in (shorter, bad)]
    assert done.stdout.splitlines() == [said, said, *complaints]
    assert (good / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
