"""The cross-entropy behind a frozen head against torch's own, piece by piece or at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from dflash.model import cross_entropy as room
from dflash.model.cross_entropy import Teacher, linear_cross_entropy, rows_of_piece, score_taught

ROWS, WIDTH, VOCABULARY = 12, 8, 11


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH, generator=generator).requires_grad_()
    head = torch.randn(VOCABULARY, WIDTH, generator=generator)
    labels = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    return hidden, head, labels, torch.rand(ROWS, generator=generator).requires_grad_()


@pytest.mark.parametrize("piece", [4096, 4, 1])
def test_loss_and_gradients_are_those_of_the_weighted_sum(monkeypatch: pytest.MonkeyPatch, piece: int):
    monkeypatch.setattr(room, "PIECE", piece)
    hidden, head, labels, weights = problem()
    loss, right = linear_cross_entropy(hidden, head, labels, weights, torch.arange(ROWS))
    found = torch.autograd.grad(3 * loss, (hidden, weights))
    expected = (cross_entropy(hidden @ head.T, labels, reduction="none") * weights).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for mine, torchs in zip(found, torch.autograd.grad(3 * expected, (hidden, weights)), strict=True):
        assert torch.allclose(mine, torchs, rtol=1e-5, atol=1e-6)
    assert torch.equal(right, (hidden @ head.T).argmax(-1) == labels)


def test_rows_that_are_not_asked_for_cost_and_count_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "PIECE", 4)
    hidden, head, labels, weights = problem()
    asked = torch.tensor([1, 3, 5, 7, 8, 9, 10, 11])
    scored = 0

    def counting(*arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nonlocal scored
        scored += len(arguments[0])
        return room.score_piece(*arguments)

    loss, right = linear_cross_entropy(hidden, head, labels, weights, asked, counting)
    (slope,) = torch.autograd.grad(loss, hidden)
    left = torch.ones(ROWS, dtype=torch.bool).index_fill(0, asked, False)
    assert scored == len(asked)
    assert not slope[left].any()
    assert not right[left].any()
    expected = (cross_entropy(hidden @ head.T, labels, reduction="none") * weights)[asked].sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_no_row_at_all_is_a_loss_of_zero():
    hidden, head, labels, weights = problem()
    never = pytest.fail  # a compiled function would be called with a shape that it was not warmed with
    loss, right = linear_cross_entropy(hidden, head, labels, weights, torch.arange(0), never)
    (slope,) = torch.autograd.grad(loss, hidden)
    assert loss.item() == 0
    assert not slope.any()
    assert not right.any()


@pytest.mark.parametrize(
    ("total", "rows"), [(15360, 3840), (7680, 3840), (4096, 4096), (4097, 241), (12, 12), (1, 1), (8192, 4096)]
)
def test_pieces_are_equal_and_as_large_as_the_limit_allows(total: int, rows: int):
    assert rows_of_piece(total) == rows


def test_weights_made_of_the_losses_count_as_constants():
    hidden, head, labels, weights = problem()
    made = torch.rand(ROWS, generator=torch.Generator().manual_seed(1))
    seen = []

    def weigh(losses: Tensor) -> Tensor:
        seen.append(losses.clone())
        return made

    loss, _ = linear_cross_entropy(hidden, head, labels, weights, torch.arange(ROWS), weigh=weigh)
    each = cross_entropy(hidden @ head.T, labels, reduction="none")
    expected = (each * weights * made).sum()
    assert torch.allclose(seen[0], each, atol=1e-6)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    mine, torchs = (torch.autograd.grad(sum_, (hidden, weights)) for sum_ in (loss, expected))
    assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(mine, torchs, strict=True))


def taught_by(states: Tensor, share: float) -> Teacher:
    """A teacher of fewer states than rows, which are not in the rows' order."""
    return Teacher(states, torch.arange(ROWS).flip(0) // 2, torch.tensor(share))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_teachers_share_of_the_loss_is_the_divergence_from_its_distribution(
    monkeypatch: pytest.MonkeyPatch, share: float
):
    monkeypatch.setattr(room, "PIECE", 4)
    hidden, head, labels, weights = problem()
    teacher = taught_by(2 * torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(2)), share)
    asked = torch.tensor([0, 2, 3, 5, 7, 8, 9, 11])
    loss, right = linear_cross_entropy(hidden, head, labels, weights, asked, score_taught, None, teacher)
    wanted = (teacher.states[teacher.places] @ head.T).log_softmax(-1)
    logits = hidden @ head.T
    divergence = kl_div(logits.log_softmax(-1), wanted, log_target=True, reduction="none").sum(-1)
    each = (1 - share) * cross_entropy(logits, labels, reduction="none") + share * divergence
    expected = (each * weights)[asked].sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    mine, torchs = (torch.autograd.grad(total, (hidden, weights)) for total in (loss, expected))
    assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(mine, torchs, strict=True))
    assert torch.equal(right[asked], ((logits.argmax(-1) == labels)[asked]))


def test_who_says_what_the_teacher_says_has_nothing_to_learn():
    hidden, head, labels, weights = problem()
    teacher = Teacher(hidden.detach(), torch.arange(ROWS), torch.tensor(1.0))
    loss, _ = linear_cross_entropy(hidden, head, labels, weights, torch.arange(ROWS), score_taught, None, teacher)
    (slope,) = torch.autograd.grad(loss, hidden)
    assert abs(loss.item()) < 1e-5
    assert float(slope.abs().max()) < 1e-5


def test_with_a_teacher_weights_are_still_made_of_what_the_labels_cost():
    hidden, head, labels, weights = problem()
    teacher, seen = taught_by(torch.randn(6, WIDTH), 0.5), []

    def weigh(losses: Tensor) -> Tensor:
        seen.append(losses.clone())
        return torch.ones_like(losses)

    linear_cross_entropy(hidden, head, labels, weights, torch.arange(ROWS), score_taught, weigh, teacher)
    assert torch.allclose(seen[0], cross_entropy(hidden @ head.T, labels, reduction="none"), atol=1e-6)
