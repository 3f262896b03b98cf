"""What a drafter is worth: real speculative decoding of prompts, against the target's own plain decoding."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from dflash.errors import CheckpointError, UsageError
from dflash.model.decoding import Generation, generate
from dflash.model.draft import DFlashDraftModel
from dflash.model.fit import refuse_misfit
from dflash.model.layout import load_draft
from dflash.model.target import load_target, target_config
from dflash.progress import Progress
from dflash.training.checkpoints import STATE, read
from dflash.training.config import EvaluateConfig
from dflash.training.dataset import read_tokenizer
from dflash.training.drafts import fresh_draft
from dflash.training.prompts import Prompts, names_of, read_prompts


@dataclass
class Decoded:
    """The prompts of one data set, decoded both ways, and the seconds that each way took."""

    prompts: Prompts
    speculative: list[Generation] = field(default_factory=list)
    plain: list[list[int]] = field(default_factory=list)
    speculative_s: float = 0.0
    plain_s: float = 0.0


class Pair:
    """A target, a drafter that fits it, and prompts for both, ready to decode as `config` says."""

    def __init__(self, config: EvaluateConfig, target: Path, draft: Path, files: Sequence[Path]) -> None:
        """`draft` is a folder in the published layout; a training's checkpoint is one, and is verified first.

        What is wrong is found before the target's weights are loaded.

        Raises:
            UsageError: the target can not be used, the device is not there, or a file is named twice.
            CheckpointError: the drafter can not be used, or is for another target.
            DataError: a file holds no conversation.
        """
        if config.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("torch sees no GPU here", where="device cuda", cure="use device cpu")
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config
        shape, dtype = target_config(target), getattr(torch, config.dtype)
        drafter = _drafter(draft)
        refuse_misfit(drafter.config, shape, str(draft))
        tokenizer = read_tokenizer(target)
        longest = shape.max_position_embeddings - config.new_tokens - drafter.block_size
        self.sets = [
            read_prompts(file, tokenizer, name=name, longest=longest, limit=config.limit)
            for file, name in zip(files, names_of(files), strict=True)
        ]
        self.draft = drafter.to(config.device, dtype)
        self.target: PreTrainedModel = load_target(target, dtype, config.device)
        ends = self.target.generation_config.eos_token_id or shape.eos_token_id
        self.stops: list[int] = ([ends] if isinstance(ends, int) else list(ends or ())) if config.stop else []
        if config.stop and not self.stops:
            raise UsageError("the target names no end token", where=str(target), cure="decode without stop")
        # A folder may come with penalties and cuts of its own; both ways decode from what the target itself gives.
        self.target.generation_config = GenerationConfig()

    def speculative(self, chat: list[int], number: int, draft: DFlashDraftModel | None = None) -> Generation:
        """Decode with the drafter, or with another; `number` seeds what is drawn."""
        seeded = torch.Generator(self.target.device).manual_seed(self.config.seed + number)
        return generate(
            self.target,
            draft or self.draft,
            chat,
            self.config.new_tokens,
            self.stops,
            temperature=self.config.temperature,
            generator=seeded,
        )

    def plain(self, chat: list[int], number: int) -> list[int]:
        """The target's own output by transformers' `generate` with its KV cache, an implementation that is not ours."""
        torch.manual_seed(self.config.seed + number)
        heat = self.config.temperature
        tokens = torch.tensor([chat], device=self.target.device)
        output = self.target.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=self.config.new_tokens,
            eos_token_id=self.stops or None,
            pad_token_id=0,
            **({"do_sample": True, "temperature": heat, "top_k": 0, "top_p": 1.0} if heat else {"do_sample": False}),
        )
        answer: list[int] = output[0, len(chat) :].tolist()
        return answer

    def decode(self, progress: Progress) -> list[Decoded]:
        """Decode all prompts both ways, in turn, so that a machine that gets slower or faster does so for both.

        The first prompt is decoded once before, unmeasured: first calls load kernels and grow memory pools.
        """
        first = self.sets[0].chats[0]
        self.plain(first, 0)
        self.speculative(first, 0)
        done, total = 0, sum(len(prompts.chats) for prompts in self.sets)
        every: list[Generation] = []
        decoded = [Decoded(prompts) for prompts in self.sets]
        for each in decoded:
            for chat in each.prompts.chats:
                begun = time.perf_counter()
                each.plain.append(self.plain(chat, done))
                between = time.perf_counter()
                each.speculative.append(self.speculative(chat, done))
                each.speculative_s += time.perf_counter() - between
                each.plain_s += between - begun
                every.append(each.speculative[-1])
                done += 1
                progress.update(done, total, {"accept_len": mean_gain(every)})
        return decoded


def evaluate(config: EvaluateConfig, target: Path, draft: Path, prompts: Path, progress: Progress) -> dict[str, Any]:
    """Decode all conversations of the JSONL `prompts`, trained and untrained; the figures.

    Raises: see `Pair`.
    """
    pair = Pair(config, target, draft, [prompts])
    (decoded,) = pair.decode(progress)
    found = figures([decoded], pair.draft.block_size)
    untrained = fresh_draft(pair.draft.config, config.seed).to(pair.target.device, pair.target.dtype).eval()
    part = decoded.prompts.chats[: config.untrained_prompts]
    naive = [pair.speculative(chat, number, untrained) for number, chat in enumerate(part)]
    if naive:
        found["acceptance_length_untrained"] = round(mean_gain(naive), 4)
    if not config.temperature:
        found |= {"greedy_identical": same(decoded), "greedy_total": found["prompts"]}
    by_prompt = [round(each.acceptance_length, 3) for each in decoded.speculative]
    return {**found, "acceptance_by_prompt": by_prompt, "new_tokens": config.new_tokens}


def compare(
    config: EvaluateConfig, target: Path, draft: Path, files: Sequence[Path], progress: Progress
) -> dict[str, Any]:
    """Decode the conversations of each of `files`, a data set each; the figures of each and of all together.

    Raises: see `Pair`.
    """
    pair = Pair(config, target, draft, files)
    decoded = pair.decode(progress)
    block = pair.draft.block_size

    def row(sets: Sequence[Decoded]) -> dict[str, Any]:
        known = figures(sets, block)
        return known if config.temperature else {**known, "identical": sum(same(each) for each in sets)}

    return {
        "block": block,
        "datasets": [
            {"name": each.prompts.name, **row([each]), "passed_over": each.prompts.passed_over} for each in decoded
        ],
        "all": row(decoded),
    }


def figures(sets: Sequence[Decoded], block: int) -> dict[str, Any]:
    """The figures of some data sets together. `acceptance_length` is tokens gained a target pass, over all rounds."""
    generations = [generation for each in sets for generation in each.speculative]
    drafted, plain = sum(len(each.tokens) for each in generations), sum(len(t) for each in sets for t in each.plain)
    speculative_s, plain_s = sum(each.speculative_s for each in sets), sum(each.plain_s for each in sets)
    pace, plain_pace = drafted / speculative_s, plain / plain_s
    return {
        "prompts": len(generations),
        "tokens": drafted,
        "rounds": sum(len(each.gained) for each in generations),
        "acceptance_length": round(mean_gain(generations), 4),
        "accepted_by_slot": accepted_by_slot(generations, block),
        "plain_tokens_per_s": round(plain_pace, 1),
        "speculative_tokens_per_s": round(pace, 1),
        "speedup": round(pace / plain_pace, 3),
    }


def mean_gain(generations: Sequence[Generation]) -> float:
    """Tokens gained a round, over all rounds; 1.0 where there was none."""
    gains = [gain for generation in generations for gain in generation.gained]
    return sum(gains) / len(gains) if gains else 1.0


def accepted_by_slot(generations: Sequence[Generation], block: int) -> list[float | None]:
    """For the slots 1 to `block` - 1: how often it was accepted, of the times that all before it were.

    None is a slot that was never reached. What was drafted beyond a stop token is not counted.
    """
    reached, right = [0] * (block + 1), [0] * (block + 1)
    for generation in generations:
        for gained, accepted in zip(generation.gained, generation.accepted, strict=True):
            for slot in range(1, min(gained, accepted + 1, block - 1) + 1):
                reached[slot] += 1
                right[slot] += slot <= accepted
    return [round(right[slot] / reached[slot], 4) if reached[slot] else None for slot in range(1, block)]


def same(decoded: Decoded) -> int:
    """How many outputs are the target's own."""
    return sum(mine.tokens == own for mine, own in zip(decoded.speculative, decoded.plain, strict=True))


def _drafter(folder: Path) -> DFlashDraftModel:
    if not folder.is_dir():
        raise CheckpointError(
            "there is no such folder", where=str(folder), cure="name a checkpoint, or an exported drafter"
        )
    if (folder / STATE).is_file():
        try:
            read(folder.resolve())
        except CheckpointError as damage:
            cure = "name another checkpoint, or give this folder the name it was saved by"
            raise CheckpointError(damage.what, where=damage.where, cure=cure) from damage
    return load_draft(folder)
