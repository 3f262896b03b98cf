"""The published layout: every field and tensor that other readers look for, and nothing that can not be read back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dflash.model.draft import DFlashDraftModel
from dflash.model.layout import load_draft, write_layout
from tests.model.drafters import WINDOW, change, fields_of
from tests.tiny import BLOCK, HIDDEN, new_draft

CODE = Path(__file__).parents[2]


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


def test_of_a_drafter_with_a_sliding_layer_it_says_which_and_how_far_it_looks(sliding_folder: Path):
    written = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "use_sliding_window": True,
        "max_window_layers": 2,
    }
    assert {name: fields_of(sliding_folder)[name] for name in written} == written
    assert load_draft(sliding_folder).windows == [WINDOW, None]


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


@pytest.mark.parametrize("of", ["folder", "sliding_folder"])
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


@pytest.mark.nightly
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
from dataclasses import replace
from types import SimpleNamespace
from dflash.errors import CheckpointError
from dflash.model import layout
from dflash.training import drafts
from tests.tiny import target_config
from tests.training.small import CONFIG
source, good, bad, altered, sliding, shorter = map(Path, sys.argv[1:])
print(layout.publish(source, good))
print(layout.publish(sliding, sliding))
published = layout.published_config
layout.published_config = lambda config, dtype: published(config, dtype) | {"sliding_window": config.sliding_window - 1}
try:
    layout.publish(sliding, shorter)
except CheckpointError as failure:
    print(failure)
try:
    drafts.prove_layout(target_config(), replace(CONFIG, draft=replace(CONFIG.draft, sliding=1, window=6)), bad)
except CheckpointError as failure:
    print(str(failure).partition(": ")[2])
layout.published_config = published
drafts.prove_layout(target_config(), CONFIG, bad)
assert not list(bad.iterdir())
layout.draft_module = SimpleNamespace(__file__=altered)
try:
    layout.publish(source, bad)
except CheckpointError as failure:
    print(failure)
"""


def test_publishing_proves_that_transformers_gives_the_same_output(
    folder: Path, sliding_folder: Path, draft: DFlashDraftModel, tmp_path: Path
):
    good, bad, altered, shorter = (tmp_path / name for name in ("good", "bad", "altered.py", "shorter"))
    for made in (good, bad, shorter):
        made.mkdir()
    code = (folder / "dflash.py").read_text()
    assert code.count("return self.norm(block)") == 1
    altered.write_text(code.replace("return self.norm(block)", "return self.norm(block) * 1.0001"))
    words = map(str, (folder, good, bad, altered, sliding_folder, shorter))
    done = isolated(PUBLISH, *words, home=tmp_path, project=True)
    assert done.returncode == 0, done.stderr
    said = str({"tensors": 25, "parameters": sum(p.numel() for p in draft.parameters())})
    another = "reloaded by transformers, the drafter gives another output"
    assert done.stdout.splitlines() == [said, said, f"{shorter}: {another}", another, f"{bad}: {another}"]
    assert (good / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
