"""Speculative decoding: the target's own greedy output, whatever the drafter, and an honest account of the gain."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash.model import decoding
from dflash.model.acceptance import verify
from dflash.model.decoding import Generation, generate
from dflash.model.draft import DFlashDraftModel
from dflash.model.loss import slot_decay
from dflash.model.target import Capture
from dflash.training.config import DraftConfig
from dflash.training.drafts import draft_config
from dflash.training.regions import Labels, labels
from tests.chance import chance_of
from tests.tiny import (
    BLOCK,
    constant_target,
    draft_eagerly,
    make_constant,
    micro_batch,
    new_draft,
    randomize,
    target_config,
)

SAID = 65
"""The one token that the constant target ever says."""


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def greedy(target: Qwen3ForCausalLM, prompt: list[int], new_tokens: int, stop: int | None = None) -> list[int]:
    """The same by transformers."""
    tokens = torch.tensor([prompt])
    output = target.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=stop,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@dataclass(frozen=True)
class Learnt:
    """A drafter that has learnt the target's answer to one prompt by heart, nearly; `answer` is long."""

    draft: DFlashDraftModel
    prompt: list[int]
    answer: list[int]


@pytest.fixture(scope="module")
def learnt(target: Qwen3ForCausalLM) -> Learnt:
    return learn(target, new_draft())


def learn(target: Qwen3ForCausalLM, draft: DFlashDraftModel) -> Learnt:
    prompt = prompt_of(9)
    answer = greedy(target, prompt, 60)
    tokens = torch.tensor([prompt + answer])
    anchors = list(range(len(prompt), tokens.shape[1] - 1, 3))
    trainable = torch.arange(tokens.shape[1])[None] >= len(prompt)
    batch = micro_batch(tokens, [[tokens.shape[1]]], [anchors], trainable)
    features = Capture(target, draft.target_layer_ids).features(batch.tokens, batch.positions, batch.documents)
    wanted = labels(batch, slot_decay(BLOCK, 4.0), BLOCK)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=1e-2)
    for _ in range(25):
        optimizer.zero_grad()
        draft_eagerly(draft, target, batch, features, wanted).loss.backward()
        optimizer.step()
    return Learnt(draft.requires_grad_(False), prompt, answer)


@pytest.fixture(scope="module")
def constant() -> Qwen3ForCausalLM:
    return constant_target(SAID)


def constant_draft(sign: float) -> DFlashDraftModel:
    """A drafter of that target which always says the same as it (1), or never does (-1)."""
    draft = new_draft(seed=6)
    make_constant(draft, sign)
    return draft


@pytest.mark.parametrize("length", [1, 2, 7, 40])
@pytest.mark.parametrize("seed", [1, 2])
def test_with_a_random_drafter_the_output_is_the_targets_own(target: Qwen3ForCausalLM, length: int, seed: int):
    prompt = prompt_of(length, seed)
    found = generate(target, new_draft(seed), prompt, 30)
    assert found.tokens == greedy(target, prompt, 30)
    assert len(set(found.tokens)) > 5


def test_greedy_decoding_leaves_torchs_random_state_alone(target: Qwen3ForCausalLM):
    draft, before = new_draft(), torch.get_rng_state()
    generate(target, draft, prompt_of(3), 5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("new_tokens", [1, 2, 3, 17, 60])
def test_with_a_trained_drafter_the_output_is_the_targets_own(
    target: Qwen3ForCausalLM, learnt: Learnt, new_tokens: int
):
    assert generate(target, learnt.draft, learnt.prompt, new_tokens).tokens == learnt.answer[:new_tokens]


@pytest.mark.parametrize("length", [1, 5, 20])
def test_so_it_is_on_prompts_that_the_drafter_was_not_trained_on(target: Qwen3ForCausalLM, learnt: Learnt, length: int):
    prompt = prompt_of(length, seed=11)
    assert generate(target, learnt.draft, prompt, 30).tokens == greedy(target, prompt, 30)


def test_every_token_of_the_answer_can_be_the_one_that_stops_it(target: Qwen3ForCausalLM, learnt: Learnt):
    """The first of a round, one accepted in its middle, the target's own at its end: all of them occur."""
    for stop in sorted(set(learnt.answer[:20])):
        found = generate(target, learnt.draft, learnt.prompt, 60, stop)
        assert found.tokens == greedy(target, learnt.prompt, 60, stop)
        assert found.tokens[-1] == stop
        assert 1 + sum(found.gained) == len(found.tokens)


def test_a_stop_token_that_is_not_said_stops_nothing(target: Qwen3ForCausalLM, learnt: Learnt):
    unsaid = next(token for token in range(256) if token not in learnt.answer)
    assert generate(target, learnt.draft, learnt.prompt, 60, unsaid).tokens == learnt.answer


def test_one_new_token_needs_no_round_and_counts_as_no_gain(target: Qwen3ForCausalLM, learnt: Learnt):
    found = generate(target, learnt.draft, learnt.prompt, 1)
    assert found == Generation(learnt.answer[:1], [], [])
    assert found.acceptance_length == 1.0


def test_any_of_several_stop_tokens_ends_the_answer(target: Qwen3ForCausalLM, learnt: Learnt):
    stops = [learnt.answer[30], learnt.answer[7]]
    found = generate(target, learnt.draft, learnt.prompt, 60, stops)
    first = min(learnt.answer.index(stop) for stop in stops)
    assert found.tokens == learnt.answer[: first + 1]


def test_what_a_round_accepted_is_its_gain_without_the_targets_own_token(target: Qwen3ForCausalLM, learnt: Learnt):
    found = generate(target, learnt.draft, learnt.prompt, 60)
    assert found.accepted == [gain - 1 for gain in found.gained]


@pytest.mark.parametrize("length", [3, 20])
def test_a_target_with_a_sliding_window_gets_back_what_a_refused_draft_pushed_out(length: int):
    config = target_config()
    config.layer_types = ["sliding_attention", "full_attention"] * 3
    config.use_sliding_window, config.sliding_window = True, 8
    sliding = Qwen3ForCausalLM(config)
    randomize(sliding, seed=0)
    sliding = sliding.double().requires_grad_(False).eval()
    prompt = prompt_of(length)
    assert generate(sliding, new_draft(), prompt, 20).tokens == greedy(sliding, prompt, 20)


@pytest.mark.parametrize(("new_tokens", "rounds"), [(2, 1), (1 + BLOCK, 1), (2 + BLOCK, 2), (1 + 5 * BLOCK, 5)])
def test_a_drafter_that_is_always_right_gains_a_block_each_round(
    constant: Qwen3ForCausalLM, new_tokens: int, rounds: int
):
    found = generate(constant, constant_draft(1.0), prompt_of(6), new_tokens)
    assert found.tokens == greedy(constant, prompt_of(6), new_tokens) == [SAID] * new_tokens
    assert found.gained == [BLOCK] * rounds
    assert found.acceptance_length == BLOCK


def test_a_drafter_that_is_never_right_gains_one_token_each_round(constant: Qwen3ForCausalLM):
    found = generate(constant, constant_draft(-1.0), prompt_of(6), 9)
    assert found.tokens == [SAID] * 9
    assert found.gained == [1] * 8
    assert found.acceptance_length == 1.0


def test_each_round_gains_what_training_would_have_counted_at_its_anchor(target: Qwen3ForCausalLM, learnt: Learnt):
    """So that features, positions and anchors of inference are those of training, on gains of every size."""
    gains_as_trained(target, learnt)


def test_so_does_each_round_of_a_drafter_that_slides(target: Qwen3ForCausalLM):
    gains_as_trained(target, learn(target, new_draft(sliding=1, window=6)))


def gains_as_trained(target: Qwen3ForCausalLM, learnt: Learnt) -> None:
    tokens = torch.tensor([learnt.prompt + learnt.answer])
    found = generate(target, learnt.draft, learnt.prompt, 50)
    starts = [len(learnt.prompt)]
    for gain in found.gained[:-1]:
        starts.append(starts[-1] + gain)
    batch = micro_batch(tokens, [[tokens.shape[1]]], [starts])
    features = Capture(target, learnt.draft.target_layer_ids).features(batch.tokens, batch.positions, batch.documents)
    wanted: Labels = labels(batch, slot_decay(BLOCK, 4.0), BLOCK)
    outcome = draft_eagerly(learnt.draft, target, batch, features, wanted)
    assert outcome.accepted.tolist() == found.gained
    assert set(found.gained) == {1, 2, 3, 4}


@dataclass(frozen=True)
class Few:
    """A target and a drafter of three tokens and blocks of two, and the exact distribution of the next three tokens."""

    target: Qwen3ForCausalLM
    draft: DFlashDraftModel
    exact: Tensor

    def counts(self, draft_temperature: float | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        counts = torch.zeros(3, 3, 3)
        for _ in range(60):
            found = generate(
                self.target,
                self.draft,
                FEW_PROMPT,
                3,
                temperature=FEW_TEMPERATURE,
                draft_temperature=draft_temperature,
                generator=generator,
            )
            counts[tuple(found.tokens)] += 1
        return counts


FEW_PROMPT, FEW_TEMPERATURE = [2, 0, 1, 1], 0.7


@pytest.fixture(scope="module")
def few() -> Few:
    config = Qwen3Config(
        vocab_size=3,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=3,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    target = Qwen3ForCausalLM(config)
    draft = DFlashDraftModel(draft_config(config, DraftConfig(layers=1, features=1, block=2, mask_token_id=2)))
    randomize(target, seed=4)
    randomize(draft, seed=4)
    target, draft = target.double().requires_grad_(False).eval(), draft.double().eval()
    answers = torch.cartesian_prod(*[torch.arange(3)] * 3)
    texts = torch.cat((torch.tensor(FEW_PROMPT).expand(27, -1), answers), dim=1)
    said = (target(texts).logits[:, len(FEW_PROMPT) - 1 : -1] / FEW_TEMPERATURE).softmax(-1)
    return Few(target, draft, said.gather(2, answers[:, :, None]).prod(1).view(3, 3, 3))


@pytest.mark.parametrize("draft_temperature", [None, 0.0])
def test_above_temperature_zero_three_tokens_have_the_targets_joint_distribution(
    few: Few, draft_temperature: float | None
):
    """Of the prompt, of a round that may be refused, and of what follows it; drafted by chance or as the argmax."""
    assert chance_of(few.counts(draft_temperature), few.exact) > 0.01


def test_the_targets_distributions_one_place_off_would_be_seen(few: Few, monkeypatch: pytest.MonkeyPatch):
    def off(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> tuple[int, Tensor]:
        return verify(drafted, q, p.roll(1, 0), generator)

    monkeypatch.setattr(decoding, "verify", off)
    assert chance_of(few.counts(), few.exact) < 1e-6


def test_the_same_seed_says_the_same_and_another_one_something_else(target: Qwen3ForCausalLM, learnt: Learnt):
    said = [
        generate(
            target,
            learnt.draft,
            learnt.prompt,
            12,
            temperature=1.0,
            generator=torch.Generator().manual_seed(seed),
        ).tokens
        for seed in (1, 1, 2)
    ]
    assert said[0] == said[1] != said[2]
