"""The compile gate: nobody calls while somebody compiles, and nothing compiles after it is sealed."""

import sys
import threading
import time

import pytest
import torch
import torch._dynamo.config
from torch import Tensor
from torch.fx import _symbolic_trace

from dflash.compilation import gate as gate_module
from dflash.compilation.gate import CompileGate, Graph
from dflash.compilation.hits import cache_counts
from dflash.errors import CompilationError
from tests.compilation.threads import in_threads


def double(x: Tensor) -> Tensor:
    return x.sin() * 2 + x


@pytest.fixture(scope="module")
def warm():
    """A gate whose one function is compiled, forward and backward, for eight numbers, by torch's own inductor."""
    gate = CompileGate()
    function = gate.compile(double, name="double")
    with gate.turn():
        function(torch.ones(8, requires_grad=True)).sum().backward()
    yield gate, function
    torch.compiler.reset()


def test_a_call_outside_a_turn_is_refused_by_name_before_the_gate_is_sealed():
    gate = CompileGate(enabled=False)
    function = gate.compile(double, name="double")
    with pytest.raises(CompilationError, match=r"'double' was called before the gate was sealed"):
        function(torch.ones(2))


def test_a_turn_of_another_thread_does_not_allow_a_call_here():
    gate = CompileGate(enabled=False)
    function = gate.compile(double, name="double")
    with gate.turn():
        (refused,) = in_threads(1, lambda _: function(torch.ones(2)))
    assert isinstance(refused, CompilationError)


def test_turns_never_overlap():
    gate = CompileGate(enabled=False)
    inside: list[int] = []
    worst = []

    def body(number: int) -> None:
        with gate.turn():
            inside.append(number)
            time.sleep(0.005)
            worst.append(len(inside))
            inside.remove(number)

    assert in_threads(8, body) == []
    assert worst == [1] * 8


def test_a_turn_inside_the_same_threads_turn_ends_only_with_the_outer_one():
    gate = CompileGate(enabled=False)
    function = gate.compile(double, name="double")
    with gate.turn():
        with gate.turn():
            function(torch.ones(2))
        function(torch.ones(2))


def test_a_failure_in_a_turn_gives_the_turn_back():
    gate = CompileGate(enabled=False)
    with pytest.raises(ZeroDivisionError), gate.turn():
        raise ZeroDivisionError
    assert in_threads(1, lambda _: gate.turn().__enter__()) == []


def test_a_turn_after_sealing_is_refused():
    gate = CompileGate(enabled=False)
    with gate.sealed(), pytest.raises(CompilationError, match="after the gate was sealed"), gate.turn():
        pass


def test_a_tracing_flag_that_is_left_up_ends_the_turn_with_an_error():
    gate = CompileGate(enabled=False)
    try:
        with pytest.raises(CompilationError, match="tracing flag stayed up"), gate.turn():
            _symbolic_trace._is_fx_tracing_flag = True
    finally:
        _symbolic_trace._is_fx_tracing_flag = False


def test_a_call_while_something_else_is_traced_is_an_error_even_with_torchs_check_off():
    gate = CompileGate()
    function = gate.compile(lambda x: x * 5, name="five", backend="eager")
    with gate.turn():
        function(torch.ones(2))
    try:
        with gate.sealed(), torch._dynamo.config.patch(error_on_nested_fx_trace=False):
            _symbolic_trace._is_fx_tracing_flag = True
            with pytest.raises(CompilationError, match="'five' was called while something is traced"):
                function(torch.ones(2))
    finally:
        _symbolic_trace._is_fx_tracing_flag = False


def test_sealed_functions_are_called_by_many_threads_at_once_with_the_right_results(warm):
    gate, function = warm
    expected = double(torch.arange(8.0))

    def body(number: int) -> None:
        for _ in range(50):
            x = torch.arange(8.0, requires_grad=True)
            y = function(x)
            y.sum().backward()
            torch.testing.assert_close(y.detach(), expected)
            torch.testing.assert_close(x.grad, 2 * torch.arange(8.0).cos() + 1)

    with gate.sealed():
        assert in_threads(8, body) == []


def test_a_new_shape_after_sealing_names_the_function_the_shape_and_the_guard(warm):
    gate, function = warm
    with gate.sealed(), pytest.raises(CompilationError) as refused:
        function(torch.ones(9, requires_grad=True))
    line = str(refused.value)
    assert "'double' would need a new graph for (9,) float32 on cpu, grad" in line
    assert "size mismatch" in line
    assert "\n" not in line


def test_a_new_grad_mode_after_sealing_is_refused_and_never_run_eagerly(warm):
    gate, function = warm
    with gate.sealed(), torch.no_grad(), pytest.raises(CompilationError, match="'double' would need a new graph"):
        function(torch.ones(8, requires_grad=True))


def test_a_shape_that_was_never_warmed_at_all_is_refused():
    gate = CompileGate()
    function = gate.compile(lambda x: x + 1, name="add", backend="eager")
    with gate.sealed(), pytest.raises(CompilationError, match=r"'add' would need a new graph .* \(it has none yet\)"):
        function(torch.ones(3))


def test_the_backward_is_compiled_in_the_turn_even_if_nobody_asked_for_it_there(warm):
    gate, _ = warm
    function = gate.compile(lambda x: (x.exp() * x).sum(), name="forward_only")
    with gate.turn():
        function(torch.ones(8, requires_grad=True))
    misses = cache_counts().inductor_misses
    x = torch.arange(8.0, requires_grad=True)
    with gate.sealed():
        function(x).backward()
    assert cache_counts().inductor_misses == misses, "nothing was compiled by backward() after the seal"
    torch.testing.assert_close(x.grad, (torch.arange(8.0) + 1) * torch.arange(8.0).exp())


def test_each_graph_is_told_of_with_its_name_inputs_and_seconds_and_a_second_call_makes_none():
    told: list[Graph] = []
    gate = CompileGate(on_graph=told.append)
    function = gate.compile(lambda x, scale: x * scale, name="scaled", backend="eager")
    with gate.turn():
        function(torch.ones(2), scale=torch.ones(1))
        function(torch.ones(2), scale=torch.ones(1))
        function(torch.ones(3), scale=torch.ones(1))
    assert [(graph.name, graph.inputs) for graph in told] == [
        ("scaled", "(2,) float32 on cpu; (1,) float32 on cpu"),
        ("scaled", "(3,) float32 on cpu; (1,) float32 on cpu"),
    ]
    assert all(graph.seconds > 0 for graph in told)
    assert gate.graphs == told


def test_a_module_is_compiled_like_a_function():
    gate = CompileGate()
    layer = torch.nn.Linear(3, 2)
    function = gate.compile(layer, name="linear", backend="eager")
    with gate.turn():
        function(torch.ones(1, 3))
    with gate.sealed():
        torch.testing.assert_close(function(torch.ones(1, 3)), layer(torch.ones(1, 3)))
    assert [graph.name for graph in gate.graphs] == ["linear"]


def test_an_eager_function_under_guard_may_not_run_while_another_thread_has_its_turn():
    gate = CompileGate()
    mask = gate.guard(torch.ones, name="mask")
    with gate.turn():
        mask(2)
        (refused,) = in_threads(1, lambda _: mask(2))
    assert isinstance(refused, CompilationError)
    with gate.sealed():
        assert in_threads(4, lambda _: mask(2)) == []


def test_turns_of_two_gates_never_overlap_and_one_sealed_gate_closes_the_other():
    one, other = CompileGate(), CompileGate()
    entered = threading.Event()
    with one.turn():
        thread = threading.Thread(target=lambda: other.turn().__enter__() or entered.set())
        thread.start()
        assert not entered.wait(0.2)
    thread.join(10)
    with one.sealed():
        with pytest.raises(CompilationError, match="after the gate was sealed"), other.turn():
            pass
        with pytest.raises(CompilationError, match="another gate is sealed"):
            other.seal()
    other.seal()
    other.unseal()


def test_many_turns_leave_the_references_to_what_marks_them_as_they_were():
    """Torch 2.11 gives up a reference that it never took: uncompensated, what marks a turn is freed while in use."""
    gate = CompileGate(enabled=False)
    with gate.turn():
        mark = gate._turn
        before = sys.getrefcount(mark), sys.getrefcount(gate_module._OUTSIDE)
        for _ in range(50):
            with gate.turn():
                pass
        for _ in range(50):
            torch._C._get_obj_in_tls(gate_module._MARK)
        after = sys.getrefcount(mark), sys.getrefcount(gate_module._OUTSIDE)
    assert after == before


def test_two_functions_of_one_name_are_refused():
    gate = CompileGate()
    gate.compile(lambda x: x, name="layer")
    with pytest.raises(CompilationError, match="two functions of one gate are named 'layer'"):
        gate.compile(lambda x: x, name="layer")


class Deep(torch.autograd.Function):
    """A backward pass in a backward pass, as a reentrant checkpoint's; 60 deep autograd takes threads of its own."""

    @staticmethod
    def forward(ctx, x: Tensor, depth: int, body) -> Tensor:
        ctx.depth, ctx.body = depth, body
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        ctx.body()
        if ctx.depth:
            with torch.enable_grad():
                Deep.apply(torch.ones(1, requires_grad=True), ctx.depth - 1, ctx.body).sum().backward()
        return gradient, None, None


def test_a_forward_that_a_backward_pass_does_again_on_autograds_thread_is_in_the_turn():
    gate = CompileGate()
    function = gate.guard(torch.ones, name="ones")
    callers: set[int] = set()

    def again() -> None:
        function(1)
        callers.add(threading.get_ident())

    with gate.turn():
        Deep.apply(torch.ones(1, requires_grad=True), 70, again).sum().backward()
    assert len(callers) > 1


def test_a_backward_pass_outside_a_turn_may_not_call_while_another_thread_has_one():
    """Its forward was in a turn; that turn is over."""
    gate = CompileGate()
    function = gate.guard(torch.ones, name="ones")
    with gate.turn():
        y = Deep.apply(torch.ones(1, requires_grad=True), 0, lambda: function(1))
    with gate.turn():
        (refused,) = in_threads(1, lambda _: y.sum().backward())
    assert isinstance(refused, CompilationError)


def test_what_a_sealed_function_raises_by_itself_is_left_alone():
    gate = CompileGate(enabled=False)

    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("the function's own")

    function = gate.compile(fail, name="fail")
    with gate.sealed(), pytest.raises(RuntimeError, match="the function's own"):
        function(torch.ones(1))
