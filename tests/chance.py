"""Counts against the distribution that they should have."""

from __future__ import annotations

import torch
from torch import Tensor


def chance_of(counts: Tensor, exact: Tensor) -> float:
    """Pearson's chi-square: the probability of counts at least this far from `exact`, where that is the truth.

    Cells that expect fewer than two counts are taken together: the statistic is not chi-square distributed with them.
    """
    expected, found = exact.double().flatten() * counts.sum(), counts.double().flatten()
    rare = expected < 2
    expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    found = torch.cat((found[~rare], found[rare].sum()[None]))
    statistic = ((found - expected) ** 2 / expected.clamp(min=1e-9)).sum()
    return float(torch.special.gammaincc(torch.tensor((len(found) - 1) / 2).double(), statistic / 2))
