"""Threads that call one function of several graphs each find theirs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from dflash.compilation.gate import CompileGate
from dflash.compilation.variants import kind_of
from dflash.errors import CompilationError
from tests.compilation.threads import in_threads

LENGTHS = range(2, 8)
CALLS = 3000


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def in_turn_of_lengths(function, number: int) -> None:
    """Call for one length after the other, in another order in each thread."""
    pairs = [(torch.ones(length), torch.ones(length)) for length in LENGTHS]
    for call in range(CALLS):
        x, y = pairs[(call * (number + 1) + number) % len(pairs)]
        assert function(x, y).shape == x.shape


def test_bare_torch_loses_graphs_so():
    function = torch.compile(add, dynamic=False, backend="eager")
    for length in LENGTHS:
        function(torch.ones(length), torch.ones(length))
    torch.compiler.set_stance("fail_on_recompile")
    try:
        raised = [in_threads(3, partial(in_turn_of_lengths, function)) for _ in range(3)]
    finally:
        torch.compiler.set_stance("default")
    assert any("fail_on_recompile" in str(failure) for some in raised for failure in some)


def test_behind_the_gate_none_is_lost():
    gate = CompileGate()
    function = gate.compile(add, name="add", backend="eager")
    with gate.turn():
        for length in LENGTHS:
            function(torch.ones(length), torch.ones(length))
    assert len(gate.graphs) == len(LENGTHS)
    with gate.sealed():
        assert [in_threads(3, partial(in_turn_of_lengths, function)) for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("kind", ["module", "partial function"])
def test_what_has_no_code_of_its_own_has_a_graph_for_each_kind_of_call_too(kind: str):
    gate = CompileGate()
    callee = nn.Softmax(dim=0) if kind == "module" else partial(torch.add, alpha=2)
    function = gate.compile(callee, name="callee", backend="eager")
    inputs = [[torch.ones(length) for _ in range(1 if kind == "module" else 2)] for length in LENGTHS]
    with gate.turn():
        for each in inputs:
            function(*each)

    def body(number: int) -> None:
        for call in range(CALLS // 4):
            each = inputs[(call + number) % len(inputs)]
            torch.testing.assert_close(function(*each), callee(*each))

    with gate.sealed():
        assert in_threads(3, body) == []


def test_graphs_that_only_a_tensor_inside_of_another_object_tells_apart_are_refused():
    gate = CompileGate()
    function = gate.compile(lambda pair: pair[0] + pair[1], name="pair", backend="eager")
    with gate.turn():
        for length in (3, 4):
            function((torch.ones(length), torch.ones(length)))
    with pytest.raises(CompilationError, match="'pair' has several graphs for arguments that look alike"):
        gate.seal()


def test_a_call_is_told_apart_by_shape_dtype_gradient_plain_values_and_grad_mode():
    x = torch.ones(3)
    kinds = [
        kind_of((x,), {}),
        kind_of((torch.ones(4),), {}),
        kind_of((x.double(),), {}),
        kind_of((x.clone().requires_grad_(),), {}),
        kind_of((x, 1), {}),
        kind_of((x, True), {}),
        kind_of((x, None), {}),
        kind_of((x, "a"), {}),
        kind_of((x,), {"scale": x}),
    ]
    with torch.no_grad():
        kinds.append(kind_of((x,), {}))
    assert len(set(kinds)) == len(kinds)
    assert kind_of((torch.zeros(3),), {}) == kinds[0]
