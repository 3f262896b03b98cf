"""A pre-warm's graphs in words. Standard library alone: a verb that only shows them waits for no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def first_input(graph: Mapping[str, Any]) -> str:
    """Of a graph's inputs the first, for a person: the others follow from it."""
    first, more, _ = graph["inputs"].partition(";")
    return f"{first}{more and ' …'}"
