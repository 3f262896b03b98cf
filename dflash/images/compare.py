"""Why two builds of one image are not the same bytes: the first layer that differs, and the first file in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dflash.images.oci import Entry, Layer, OciTar


@dataclass(frozen=True)
class Difference:
    """Where two images first differ. `layer` counts from 1; 0 is the configuration. `how` is content, mode, time,
    owner, kind, order, compression or presence; `before` and `after` are what each of the two has."""

    layer: int
    made_by: str
    path: str
    how: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        where = f"layer {self.layer} ({self.made_by[:160]})" if self.layer else "the image's configuration"
        return f"{where}: {self.path}: {self.how} differs: {self.before} and {self.after}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def first_difference(one: OciTar, two: OciTar) -> Difference | None:
    """None when both have the same manifest digest."""
    if one.digest == two.digest:
        return None
    for number, (mine, other) in enumerate(zip(one.layers, two.layers, strict=False), 1):
        if mine.digest != other.digest:
            return _in_layer(number, mine, list(_entries(one, mine)), list(_entries(two, other)))
    if len(one.layers) != len(two.layers):
        number = min(len(one.layers), len(two.layers)) + 1
        both = (f"{len(each.layers)} layers" for each in (one, two))
        return Difference(number, "a layer that only one has", "/", "presence", *both)
    path, before, after = next(_unequal(one.config, two.config, ""), ("manifest", one.digest, two.digest))
    return Difference(0, "", path, "content", before, after)


def _in_layer(number: int, layer: Layer, one: list[Entry], two: list[Entry]) -> Difference:
    """The first by path, so that the same difference is named whichever of the two came first."""
    mine, other = ({entry.path: entry for entry in entries} for entries in (one, two))
    for path in sorted(mine.keys() | other.keys()):
        if path not in mine or path not in other:
            there = ("there", "not there") if path in mine else ("not there", "there")
            return Difference(number, layer.made_by, path, "presence", *there)
        for how in ("kind", "content", "mode", "owner", "time"):
            before, after = getattr(mine[path], how), getattr(other[path], how)
            if before != after:
                shown = (f"{each:04o}" if how == "mode" else str(each) for each in (before, after))
                return Difference(number, layer.made_by, path, how, *shown)
    for before, after in zip(one, two, strict=False):
        if before.path != after.path:
            return Difference(number, layer.made_by, before.path, "order", before.path, after.path)
    return Difference(number, layer.made_by, "/", "compression", "the same files", "packed in another way")


def _entries(image: OciTar, layer: Layer) -> Iterator[Entry]:
    return (entry for entry, _ in image.entries(layer))


def _unequal(one: Any, two: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        for key in sorted(one.keys() | two.keys()):
            yield from _unequal(one.get(key), two.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for place, (first, second) in enumerate(zip(one, two, strict=True)):
            yield from _unequal(first, second, f"{path}[{place}]")
    elif one != two:
        yield path, str(one)[:200], str(two)[:200]
