"""Train the small byte-level target that the local pipeline drafts for.

A Qwen3-architecture LM over bytes: small enough for two CPU cores in about a minute, real enough that a drafter
has something to learn. The windows it is trained on carry the chat markers, so that its answers do too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dflash.atomic import whole_folder
from dflash.errors import DataError
from dflash.model.bytelevel import ASSISTANT, END, PAD, USER, VOCABULARY, byte_tokenizer
from dflash.progress import Progress
from dflash.training import corpus
from dflash.training.checkpoints import Checkpoints, optimizer_tensors, restore_optimizer
from dflash.training.config import OptimizerConfig, TargetConfig
from dflash.training.optimizer import rate, set_rate


def model_config(config: TargetConfig, tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """The transformers configuration of the target."""
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.hidden // config.heads,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
    )


def windows(text: bytes, config: TargetConfig, markers: tuple[int, int, int], first: int) -> Iterator[Tensor]:
    """Batches (rows, window) from step `first` on: user marker, text, assistant marker, text, end marker.

    A batch is a pure function of the seed and the step, so that a resumed training sees what it would have seen.
    """
    user, assistant, end = markers
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    body = config.window - 3
    for step in range(first, config.steps):
        generator = torch.Generator().manual_seed((config.seed << 32) + step)
        starts = torch.randint(0, len(data) - body, (config.rows,), generator=generator)
        cuts = torch.randint(8, body - 8, (config.rows,), generator=generator)
        rows = []
        for start, cut in zip(starts.tolist(), cuts.tolist(), strict=True):
            piece = data[start : start + body].long()
            rows.append(
                torch.cat(
                    (
                        torch.tensor([user]),
                        piece[:cut],
                        torch.tensor([assistant]),
                        piece[cut:],
                        torch.tensor([end]),
                    )
                )
            )
        yield torch.stack(rows)


def optimizers_of(model: nn.Module, config: TargetConfig) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embedding, head and norms: some 2x fewer steps than AdamW alone."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and ".layers." in name]
    others = [p for name, p in named if not (p.ndim == 2 and ".layers." in name)]
    return [
        torch.optim.Muon(matrices, lr=config.lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=config.lr, weight_decay=0.0, betas=(0.9, 0.95), fused=True),
    ]


def train_target(config: TargetConfig, out: Path, progress: Progress) -> dict[str, float]:
    """Train the target into `out/model`, a folder that `AutoModelForCausalLM.from_pretrained` loads.

    Goes on from the newest whole checkpoint in `out/scratch/checkpoints`. Returns the figures of the finished model.

    Raises:
        DataError: the standard library's text is too short for one window.
    """
    torch.set_num_threads(config.threads or torch.get_num_threads())
    documents = corpus.standard_library(config.corpus_bytes)
    text = {name: "".join(d.text for d in corpus.split(documents, name)).encode() for name in corpus.SPLITS}
    if min(len(part) for part in text.values()) <= 4 * config.window:
        raise DataError("the standard library's text is too short", cure="raise target.corpus_bytes")
    tokenizer = byte_tokenizer()
    user, assistant, end = (tokenizer.convert_tokens_to_ids(token) for token in (USER, ASSISTANT, END))
    torch.manual_seed(config.seed)
    model = Qwen3ForCausalLM(model_config(config, tokenizer))
    names = {parameter: name for name, parameter in model.named_parameters()}
    optimizers = optimizers_of(model, config)
    checkpoints = Checkpoints(out / "scratch" / "checkpoints")
    first = 0
    if saved := checkpoints.latest(progress):
        first = saved.step
        model.load_state_dict(saved.tensors("model"))
        for index, optimizer in enumerate(optimizers):
            restore_optimizer(optimizer, model.named_parameters(), saved.tensors(f"optimizer{index}"))
        progress.note(f"target: resumed at step {first} of {config.steps}")

    schedule = OptimizerConfig(lr=config.lr, warmup=config.warmup, final=0.05)
    for step, rows in enumerate(windows(text["target"], config, (user, assistant, end), first), start=first):
        set_rate(optimizers, rate(step, config.steps, schedule))
        loss = _loss(model, rows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        progress.update(step + 1, config.steps, {"loss": round(loss.item(), 4)})
        if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
            state = {f"optimizer{i}": optimizer_tensors(o, names) for i, o in enumerate(optimizers)}
            checkpoints.save(step + 1, {"model": model.state_dict(), **state}, {})

    with torch.no_grad():
        unseen = next(windows(text["heldout"], config, (user, assistant, end), config.steps - 1))
        heldout = _loss(model.eval(), unseen).item()
    with whole_folder(out / "model") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": config.steps,
        "heldout_nats_per_byte": round(heldout, 4),
    }


def _loss(model: Qwen3ForCausalLM, rows: Tensor) -> Tensor:
    hidden = model.model(rows).last_hidden_state
    return cross_entropy(model.lm_head(hidden[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
