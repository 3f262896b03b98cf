"""The compile gate: nobody calls while somebody compiles, and nothing compiles after it is sealed."""

import threading
import time

import pytest
import torch
from torch import Tensor
from torch.fx import _symbolic_trace

from dflash.compilation.gate import CompileGate
from dflash.errors import CompilationError


def double(x: Tensor) -> Tensor:
    return x.sin() * 2 + x


def in_threads(count: int, body) -> list[BaseException]:
    """Run `body(number)` in `count` threads; what they raised."""
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            body(number)
        except BaseException as failure:
            raised.append(failure)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return raised


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


def test_what_a_sealed_function_raises_by_itself_is_left_alone():
    gate = CompileGate(enabled=False)

    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("the function's own")

    function = gate.compile(fail, name="fail")
    with gate.sealed(), pytest.raises(RuntimeError, match="the function's own"):
        function(torch.ones(1))
