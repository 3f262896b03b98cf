"""The compile gate: no function behind it ever runs eagerly, unnoticed."""

import pytest
import torch
import torch._dynamo.config
import torch._functorch.config
from torch._dynamo import eval_frame

from dflash.compilation.gate import CompileGate
from dflash.errors import CompilationError
from tests.compilation.threads import in_threads


def test_more_graphs_than_the_limit_are_an_error_not_a_fall_back():
    gate = CompileGate(limit=8)
    function = gate.compile(lambda x: x + 1, name="add", backend="eager", fullgraph=False)

    def every_length() -> None:
        with gate.turn():
            for length in range(2, 20):
                function(torch.ones(length))

    with pytest.raises(CompilationError, match=r"'add' needs more than 8 graphs; the last was for \(10,\)"):
        every_length()


def test_the_limit_holds_in_a_thread_that_was_not_started_with_the_callers_context():
    gate = CompileGate(limit=20)
    function = gate.compile(lambda x: x * 3, name="triple", backend="eager")

    def body(number: int) -> None:
        with gate.turn():
            for length in range(2, 16):
                function(torch.ones(length))

    assert in_threads(1, body) == []
    assert len(gate.graphs) == 14


def test_a_turn_with_torchs_check_switched_off_is_refused():
    with (
        torch._dynamo.config.patch(error_on_nested_fx_trace=False),
        pytest.raises(CompilationError, match="error_on_nested_fx_trace is off"),
        CompileGate().turn(),
    ):
        pass


@pytest.mark.parametrize("how", ["stance", "disable"])
def test_a_gate_whose_functions_run_eagerly_can_not_be_sealed(how: str):
    gate = CompileGate()
    off = torch.compiler.set_stance("force_eager") if how == "stance" else torch._dynamo.config.patch(disable=True)
    with off:
        function = gate.compile(lambda x: x - 1, name="less", backend="eager", fullgraph=False)
        with gate.turn():
            function(torch.ones(2))
        with pytest.raises(CompilationError, match="'less' was called and never compiled: it would run eagerly"):
            gate.seal()


def test_a_stance_that_somebody_changes_after_the_seal_is_an_error():
    gate = CompileGate()
    function = gate.compile(lambda x: x - 2, name="less", backend="eager")
    with gate.turn():
        function(torch.ones(2))
    with gate.sealed():
        function(torch.ones(2))
        with torch.compiler.set_stance("force_eager"), pytest.raises(CompilationError, match="changed the stance"):
            function(torch.ones(2))


def test_the_settings_and_the_stance_are_as_before_when_the_gate_is_opened_again():
    before = torch._dynamo.config.recompile_limit, torch._functorch.config.force_non_lazy_backward_lowering
    gate = CompileGate()
    with gate.turn():
        assert torch._dynamo.config.recompile_limit == 64
    with gate.sealed():
        assert eval_frame._stance.stance == "fail_on_recompile"
    assert eval_frame._stance.stance == "default"
    assert (torch._dynamo.config.recompile_limit, torch._functorch.config.force_non_lazy_backward_lowering) == before
