"""The cross-entropy behind a frozen head against torch's own, piece by piece or at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dflash.model import cross_entropy as room
from dflash.model.cross_entropy import linear_cross_entropy, rows_of_piece

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
    loss, right = linear_cross_entropy(hidden, head, labels, weights, torch.arange(0))
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
