"""YAML as plain data that still knows where it was written.

Values follow YAML 1.2's core schema, so `1e-3` is a number and `on`, `no` and dates are text, which is what
a person who writes a configuration expects. Only maps with text keys, lists, text, numbers, true, false and
null are read; tags, merge keys and duplicate keys are errors. Anchors are fine.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import yaml

from dflash.errors import ConfigError, UsageError, storage_error

Place = tuple[str | int, ...]
"""Where a value sits: keys and list indices from the top."""

_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_MOST_VALUES = 1_000_000  # anchors can multiply; past this a file is an accident or an attack


_CURES = (
    ("tab character", "indent with spaces"),
    ("mapping values", "put a text that has ': ' in quotes, or indent the line as those beside it"),
    ("',' or", "close the bracket, or put a comma between what is in it"),
    ("end of stream", "close the quote"),
    ("quoted scalar", "put it in single quotes, in which \\ is itself"),
    ("undefined alias", "define it before with &, or put a text that begins with * in quotes"),
    ("duplicate anchor", "give each anchor a name of its own"),
    ("single document", "remove --- and what follows"),
    ("cannot start", "put it in quotes"),
    ("expected ':'", "write key: value"),
    ("", "check the indentation and the quotes here and in the line before"),
)
"""What to do where PyYAML's complaint has these words; the first that it has counts."""


class _Loader(_FastLoader):  # type: ignore[misc]
    """Composes nodes only; the resolvers below replace PyYAML's YAML 1.1 ones."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {}


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)


@dataclass(frozen=True)
class Document:
    """One YAML file: its `data`, and through `error` the place of every key and value in it."""

    file: str
    data: Any
    root: yaml.Node = field(repr=False)
    origins: tuple[tuple[Place, str], ...] = ()

    def position(self, path: Sequence[str | int], *, key: bool = False) -> tuple[int, int]:
        """Line and column, from 1, of the value at `path` (or its key); of the deepest part that exists."""
        node, key_node = self.root, None
        for part in path:
            found = _entry(node, part)
            if found is None:
                key_node = None
                break
            key_node, node = found
        mark = key_node.start_mark if key and key_node is not None else node.start_mark
        return mark.line + 1, mark.column + 1

    def error(
        self,
        what: str,
        path: Sequence[str | int] = (),
        *,
        key: bool = False,
        offset: int = 0,
        cure: str | None = None,
    ) -> UsageError:
        """An error about the value at `path`, naming the file's line or the option that set the value; `offset`: at
        that character of a text, where it stands in one line of the file as it is."""
        for set_path, origin in reversed(self.origins):
            if tuple(path[: len(set_path)]) == set_path:
                return UsageError(what, where=origin, cure=cure)
        line, column = self.position(path, key=key)
        column += self._inside(path, offset) if offset else 0
        return ConfigError(what, file=self.file, line=line, column=column, cure=cure)

    def _inside(self, path: Sequence[str | int], offset: int) -> int:
        """How far a text's character is from the text's place; 0 where that can not be told."""
        node = self.root
        for part in path:
            found = _entry(node, part)
            if found is None:
                return 0
            node = found[1]
        if not isinstance(node, yaml.ScalarNode) or node.start_mark.line != node.end_mark.line:
            return 0
        quotes = node.end_mark.column - node.start_mark.column - len(node.value)
        return offset + quotes // 2 if quotes in (0, 2) else 0

    def with_value(self, path: Place, value: Any, origin: str) -> Document:
        """The same document with `value` at `path`; errors there will name `origin` instead of a line.

        Raises UsageError when a part of `path` holds something that is not a map.
        """
        data = copy.deepcopy(self.data)
        place = data
        for depth, part in enumerate(path):
            holds = isinstance(place, dict) or (isinstance(place, list) and isinstance(part, int))
            if not holds:
                shown = ".".join(str(each) for each in path[:depth])
                raise UsageError(f"{shown!r} is not a map, so nothing in it can be set", where=origin)
            if depth + 1 == len(path):
                place[part] = value
            elif isinstance(place, dict) and place.get(part) is None:
                place[part] = {}
            place = place[part]
        return replace(self, data=data, origins=(*self.origins, (path, origin)))


def load(path: str | Path) -> Document:
    """Read a YAML file. Raises ConfigError (with line and column) or StorageError."""
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise ConfigError("there is no such file", file=path, cure="check the path") from None
    except OSError as failure:
        raise storage_error(failure, path) from failure
    try:
        return parse(raw.decode("utf-8"), path)
    except UnicodeDecodeError as failure:
        before = raw[: failure.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
        raise ConfigError(
            "this byte is not UTF-8", file=path, line=line, column=column, cure="save the file as UTF-8"
        ) from None


def parse(text: str, file: str | Path) -> Document:
    """Turn YAML text into a Document; `file` is only named in errors. Raises ConfigError."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
        if root is None:
            raise ConfigError("the file is empty", file=file, line=1, column=1, cure="fill it, or name another")
        return Document(str(file), _Builder(file).build(root), root)
    except yaml.MarkedYAMLError as failure:
        mark = failure.problem_mark or failure.context_mark
        what = " ".join(part for part in (failure.context, failure.problem) if part)
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        cure = next(each for words, each in _CURES if words in what)
        raise ConfigError(f"not YAML: {what}", file=file, line=line, column=column, cure=cure) from None
    except yaml.reader.ReaderError as failure:
        before = text[: failure.position]
        line, column = before.count("\n") + 1, failure.position - before.rfind("\n")
        what, cure = f"not YAML: {failure.reason}", "remove this character"
        raise ConfigError(what, file=file, line=line, column=column, cure=cure) from None
    except RecursionError:
        raise ConfigError("values are nested too deep", file=file, cure="close the brackets, or nest less") from None


def parse_scalar(text: str) -> Any:
    """One value as typed after `=`: a scalar, or a list or map in brackets. Raises ConfigError."""
    if text.startswith(("[", "{", '"', "'")):
        return parse(text, "value").data
    for name, pattern in _resolvers(text):
        if pattern.match(text):
            return _scalar(name, text)
    return text


def _resolvers(text: str) -> list[tuple[str, re.Pattern[str]]]:
    return _Loader.yaml_implicit_resolvers.get(text[:1], [])


def _entry(node: yaml.Node, part: str | int) -> tuple[yaml.Node | None, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return None, node.value[part]
    return None


def _scalar(tag: str, text: str) -> Any:
    if tag == _TAG + "null":
        return None
    if tag == _TAG + "bool":
        return text.lower() == "true"
    if tag == _TAG + "int":
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if tag == _TAG + "float":
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ValueError("too large")
        return number
    return text


class _Builder:
    """Nodes to data. Each node is built once, so that an anchor costs its size once."""

    def __init__(self, file: str | Path) -> None:
        self.file = file
        self.built: dict[int, tuple[Any, int]] = {}
        self.open: set[int] = set()

    def build(self, root: yaml.Node) -> Any:
        return self._build(root)[0]

    def _build(self, node: yaml.Node) -> tuple[Any, int]:
        if id(node) in self.built:
            return self.built[id(node)]
        if id(node) in self.open:
            raise self._error("this value contains itself", node, "write out what is meant")
        self.open.add(id(node))
        value, size = self._value(node)
        if size > _MOST_VALUES:
            raise self._error(f"anchors multiply to more than {_MOST_VALUES:,} values", node, "write fewer")
        self.open.remove(id(node))
        self.built[id(node)] = value, size
        return value, size

    def _value(self, node: yaml.Node) -> tuple[Any, int]:
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._map(node)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            built = [self._build(child) for child in node.value]
            return [value for value, _ in built], 1 + sum(size for _, size in built)
        if isinstance(node, yaml.ScalarNode) and node.tag in {
            _TAG + name for name in ("str", "int", "float", "bool", "null")
        }:
            try:
                return _scalar(node.tag, node.value), 1
            except ValueError:
                raise self._error(
                    f"{node.value[:40]!r} is not a number that can be held", node, "put it in quotes"
                ) from None
        raise self._error(f"the tag {node.tag.replace(_TAG, '!!')} is not allowed here", node, "remove the tag")

    def _map(self, node: yaml.MappingNode) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}
        total = 1
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != _TAG + "str":
                raise self._error("a key must be text", key, "put it in quotes")
            if key.value == "<<":
                raise self._error("merge keys (<<) are not read", key, "write the keys out")
            if key.value in result:
                first = next(other for other, _ in node.value if other.value == key.value).start_mark
                raise self._error(f"the key {key.value!r} is already given on line {first.line + 1}", key, "remove one")
            result[key.value], size = self._build(value)
            total += size
        return result, total

    def _error(self, what: str, node: yaml.Node, cure: str | None = None) -> ConfigError:
        mark = node.start_mark
        return ConfigError(what, file=self.file, line=mark.line + 1, column=mark.column + 1, cure=cure)
