"""What a process has compiled before is not in the key of what it compiles next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

from dflash.compilation.gate import CompileGate


@torch._dynamo.assume_constant_result
def number() -> int:
    """What torch does where it meets a Triton kernel: it goes into the graph as a number."""
    return kernel_side_table.add_constant_args({"SIZE": 8})


def launched(x: Tensor) -> Tensor:
    return x + number()


@pytest.fixture
def table() -> Iterator[None]:
    kernel_side_table.reset_table()
    yield
    kernel_side_table.reset_table()


def test_a_kernel_has_the_same_number_in_the_graph_of_every_worker_of_a_process(table: None):
    gate = CompileGate()
    function = gate.compile(launched, name="launched", backend="eager")
    with gate.turn():
        first, second = (function(torch.zeros(8, dtype=dtype)) for dtype in (torch.float32, torch.float64))
    assert (first.unique().tolist(), second.unique().tolist()) == ([0.0], [0.0])
    assert len(gate.graphs) == 2


def test_numbers_that_others_need_are_theirs_again(table: None):
    theirs = kernel_side_table.add_constant_args({"SIZE": 4})
    gate = CompileGate()
    function = gate.compile(launched, name="launched", backend="eager")
    with gate.turn():
        assert function(torch.zeros(8)).unique().tolist() == [0.0]
    assert kernel_side_table.get_constant_args(theirs) == {"SIZE": 4}
    assert len(kernel_side_table.constant_args) == 1
