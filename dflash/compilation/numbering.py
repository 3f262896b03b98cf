"""The numbers by which torch knows the Triton kernels of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

_TABLES = ("id_to_kernel", "kernel_to_id", "constant_args")


@contextmanager
def kernels_numbered_anew() -> Iterator[None]:
    """Give the Triton kernels of a graph the numbers that they have in a process that makes this graph alone.

    torch numbers the kernels that a process has met, and what they are launched with. AOTAutograd's cache takes the
    numbers in a graph for a part of it (torch 2.11, 2.13; FxGraphCache leaves them out), so that the second worker of
    a process would not find what it had compiled by itself. Forward and backward are lowered within the call, and need
    the numbers no more. Those that others still need are theirs again.
    """
    kept = {name: getattr(kernel_side_table, name) for name in _TABLES}
    kernel_side_table.reset_table()
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(kernel_side_table, name, value)
