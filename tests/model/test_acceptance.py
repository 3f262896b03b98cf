"""Speculative sampling gives the target's distribution, whatever is drafted: counted against the exact one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dflash.model.acceptance import draw, probabilities, verify
from tests.chance import chance_of

VOCABULARY, SLOTS, ROUNDS = 4, 2, 1500
Rule = Callable[[Tensor, Tensor, Tensor, torch.Generator], tuple[int, Tensor]]


def tables(seed: int) -> tuple[list[Tensor], Tensor]:
    """The target's next-token distributions given no, one and two tokens, and what the drafter proposes by slot."""
    generator = torch.Generator().manual_seed(seed)
    target = [torch.randn(*[VOCABULARY] * depth, generator=generator) for depth in (1, 2, 3)]
    proposed = torch.randn(SLOTS, VOCABULARY, generator=generator)
    return [probabilities(logits, 0.7) for logits in target], probabilities(proposed, 0.7)


def joint(target: list[Tensor]) -> Tensor:
    """The exact distribution of three tokens."""
    first, second, third = target
    return first[:, None, None] * second[:, :, None] * third


def counted(rule: Rule, target: list[Tensor], q: Tensor, seed: int) -> Tensor:
    """Three tokens, many times: what is missing after a refusal is drawn from the target, as later rounds do."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.zeros([VOCABULARY] * (SLOTS + 1))
    for drafted in torch.multinomial(q, ROUNDS, replacement=True, generator=generator).T:
        p = torch.stack([target[0], target[1][drafted[0]], target[2][drafted[0], drafted[1]]])
        right, own = rule(drafted, q, p, generator)
        said = [*drafted[:right].tolist(), int(own)]
        while len(said) <= SLOTS:
            said.append(int(draw(target[len(said)][tuple(said)][None], generator)))
        counts[tuple(said)] += 1
    return counts


@pytest.mark.parametrize("seed", [2, 3])
def test_three_tokens_deep_what_comes_out_is_distributed_as_the_target_says(seed: int):
    target, q = tables(seed)
    assert chance_of(counted(verify, target, q, seed), joint(target)) > 0.01


def no_subtraction(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> tuple[int, Tensor]:
    right, own = verify(drafted, q, p, generator)
    return right, draw(p[right][None], generator) if right < len(drafted) else own


def bonus_of_the_drafter(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> tuple[int, Tensor]:
    return verify(drafted, q, torch.cat((p[:-1], q[-1:])), generator)


def everything_accepted(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> tuple[int, Tensor]:
    return len(drafted), draw(p[-1:], generator)


def ratio_forgotten(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> tuple[int, Tensor]:
    return verify(drafted, torch.ones_like(q), p, generator)


@pytest.mark.parametrize("broken", [no_subtraction, bonus_of_the_drafter, everything_accepted, ratio_forgotten])
def test_a_broken_rule_would_be_seen(broken: Rule):
    target, q = tables(seed=3)
    assert chance_of(counted(broken, target, q, 3), joint(target)) < 1e-9


def test_as_many_are_accepted_as_the_distributions_have_in_common():
    target, q = tables(seed=3)
    generator = torch.Generator().manual_seed(0)
    p = torch.stack([target[0], target[1][0], target[2][0, 0]])
    rights = torch.tensor([verify(draw(q, generator), q, p, generator)[0] for _ in range(ROUNDS)])
    common = torch.minimum(p[:-1], q).sum(1)
    exact = torch.tensor([1 - common[0], common[0] * (1 - common[1]), common[0] * common[1]])
    assert chance_of(torch.bincount(rights, minlength=3).float(), exact) > 0.01


def test_a_drafter_that_says_what_the_target_says_is_always_accepted():
    p = probabilities(torch.randn(9, 50, generator=torch.Generator().manual_seed(0)), 1.0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        assert verify(draw(p[:-1], generator), p[:-1], p, generator)[0] == 8


def test_a_token_that_the_target_never_says_is_never_accepted_nor_said():
    q = torch.tensor([[0.5, 0.5, 0.0]])
    p = torch.tensor([[0.0, 0.3, 0.7], [0.0, 1.0, 0.0]])
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        right, own = verify(torch.tensor([0]), q, p, generator)
        assert (right, int(own)) == (0, 2), "all that q lacks of p is on the last token"


def test_a_refusal_by_rounding_alone_is_answered_from_the_targets_distribution():
    """Where q lacks nothing of p and has too much of one token; the sums are far off so that it happens often."""
    q, p = torch.tensor([[1.0, 0.5]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    generator = torch.Generator().manual_seed(0)
    outcomes = [verify(torch.tensor([0]), q, p, generator) for _ in range(100)]
    assert {int(own) for right, own in outcomes if right == 0} == {0, 1}
    assert {int(own) for right, own in outcomes if right == 1} == {1}


def test_temperature_zero_is_the_argmax_and_higher_ones_are_flatter():
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, -1.0]])
    assert probabilities(logits, 0.0).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert torch.equal(probabilities(logits, 1.0), logits.softmax(-1))
    assert torch.allclose(probabilities(logits, 2.0), (logits / 2).softmax(-1))


def test_half_precision_logits_become_float32_probabilities():
    assert probabilities(torch.zeros(1, 3, dtype=torch.bfloat16), 1.0).dtype == torch.float32
    assert probabilities(torch.zeros(1, 3, dtype=torch.float64), 1.0).dtype == torch.float64
