"""Tiny models with random weights that make the tests sharp: attention that is not flat, norms that are not one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash.compilation.gate import CompileGate
from dflash.model.bytelevel import END, MASK_ID, PAD, VOCABULARY, byte_tokenizer
from dflash.model.draft import DFlashDraftModel
from dflash.model.weights import weights_of
from dflash.training.batches import MicroBatch
from dflash.training.config import DraftConfig
from dflash.training.drafts import draft_config
from dflash.training.regions import Drafting, Labels, Outcome, Regions

HIDDEN, BLOCK = 32, 4

torch.set_num_threads(1)  # threads for matrices this small only wait for each other: 10 times slower on a busy machine


def target_config(layers: int = 6) -> Qwen3Config:
    tokenizer = byte_tokenizer()
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
    )


def randomize(model: nn.Module, seed: int) -> None:
    """Matrices that keep the scale of what passes them, vectors spread round one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 1.5 * parameter.shape[-1] ** -0.5, generator=generator)
            else:
                parameter.normal_(1.0, 0.3, generator=generator)


def new_target(seed: int = 0, layers: int = 6) -> Qwen3ForCausalLM:
    model = Qwen3ForCausalLM(target_config(layers))
    randomize(model, seed)
    return model.double().requires_grad_(False).eval()


def new_draft(seed: int = 1, *, layers: int = 2, features: int = 3, **more: int) -> DFlashDraftModel:
    """`more` are `block`, and how many layers are `sliding` with which `window`."""
    wanted = DraftConfig(layers=layers, features=features, mask_token_id=MASK_ID, **({"block": BLOCK} | more))
    draft = DFlashDraftModel(draft_config(target_config(), wanted))
    randomize(draft, seed)
    return draft.double().eval()


def make_constant(model: nn.Module, sign: float = 1.0) -> None:
    """Channel 0 of every hidden state keeps what the embedding put there (no layer writes to it), so that the last
    norm gives it the sign of that times `sign`, whatever the text."""
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        model.norm.weight[0] = sign


def constant_target(said: int) -> Qwen3ForCausalLM:
    """A real target that says `said` after anything: its LM head reads channel 0 for that token, and nothing else."""
    model = new_target(seed=5)
    make_constant(model.model)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        model.lm_head.weight.zero_()
        model.lm_head.weight[said, 0] = 1.0
    return model


def micro_batch(
    tokens: Tensor, lengths: list[list[int]], anchors: list[list[int]], trainable: Tensor | None = None
) -> MicroBatch:
    """Rows of documents of `lengths`, the rest of each row padding; `tokens` are (R, S)."""
    documents, positions = torch.full_like(tokens, -1), torch.zeros_like(tokens)
    for row, sizes in enumerate(lengths):
        start = 0
        for number, size in enumerate(sizes):
            documents[row, start : start + size] = number
            positions[row, start : start + size] = torch.arange(size)
            start += size
    if trainable is None:
        trainable = documents >= 0
    return MicroBatch(0, tokens, documents, positions, trainable, torch.tensor(anchors))


def draft_eagerly(
    draft: DFlashDraftModel,
    target: Qwen3ForCausalLM,
    batch: MicroBatch,
    features: Tensor,
    wanted: Labels,
    *,
    dpace: float | None = None,
    kl: float = 0.0,
) -> Outcome:
    """The training's forward pass, not compiled."""
    gate = CompileGate(enabled=False)
    embedding, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    regions = Regions(gate, draft.config, taught=kl > 0)
    drafting = Drafting(draft, weights_of(draft), embedding, head, regions, dpace, kl)
    with gate.turn():
        return drafting(batch, features, wanted)
