"""YAML as plain data with places."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dflash.document import load, parse, parse_scalar
from dflash.errors import ConfigError

_KEYS = st.text(alphabet="abcdé ü-_:#'\"", min_size=1, max_size=8).filter(lambda key: key != "<<")
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
)
_DATA = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(_DATA, st.booleans())
def test_what_pyyaml_writes_reads_back_and_every_place_holds_its_value(data: object, flow: bool):
    text = yaml.safe_dump(data, allow_unicode=True, default_flow_style=flow, width=10_000)
    document = parse(text, "x.yaml")
    assert document.data == data
    lines = text.split("\n")

    def check(value: object, path: tuple) -> None:
        line, column = document.position(path)
        rest = "\n".join([lines[line - 1][column - 1 :], *lines[line:]])
        if not isinstance(value, dict | list) and value is not None:
            shown = yaml.safe_dump(value, allow_unicode=True, width=10_000).removesuffix("...\n").rstrip("\n")
            quoted = str(value).replace("'", "''")
            assert rest.startswith((shown, f'"{value}', f"'{quoted}"))
        for key, inner in value.items() if isinstance(value, dict) else ():
            line, column = document.position((*path, key), key=True)
            start = lines[line - 1][column - 1 :]
            assert start.startswith((key, "'", '"', "? "))
            check(inner, (*path, key))
        for index, inner in enumerate(value) if isinstance(value, list) else ():
            check(inner, (*path, index))

    check(data, ())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("3", 3),
        ("-0.5", -0.5),
        ("1.", 1.0),
        ("0x10", 16),
        ("010", 10),
        ("true", True),
        ("yes", "yes"),
        ("off", "off"),
        ("2026-11-29", "2026-11-29"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("null", None),
        ("", None),
        ("a: b", "a: b"),
        ("[1, 2]", [1, 2]),
        ("'7'", "7"),
    ],
)
def test_scalars_follow_the_core_schema(text: str, value: object):
    assert parse_scalar(text) == value
    assert type(parse_scalar(text)) is type(value)
    if ":" not in text:
        assert parse(f"key: {text}", "x.yaml").data == {"key": value}


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("", "1:1", "the file is empty; fill it, or name another"),
        ("# only a comment\n", "1:1", "the file is empty"),
        ("a: 1\nb: 2\na: 3\n", "3:1", "the key 'a' is already given on line 1"),
        ("a: {b: 1, b: 2}\n", "1:11", "the key 'b' is already given"),
        ("a: 1\n\tb: 2\n", "2:1", "; indent with spaces"),
        ("a: [1, 2\n", "2:1", "; close the bracket, or put a comma"),
        ("a: b: c\n", "1:5", "; put a text that has ': ' in quotes"),
        ("a: @x\n", "1:4", "; put it in quotes"),
        ("a: 'x\n", "2:1", "; close the quote"),
        ("a:\n  b: 1\n c: 2\n", "3:2", "; check the indentation"),
        ("a: !!python/object:os.system x\n", "1:4", "the tag !!python/object:os.system is not allowed"),
        ("a: !secret x\n", "1:4", "the tag !secret is not allowed here; remove the tag"),
        ("1: x\n", "1:1", "a key must be text"),
        ("? [a]\n: x\n", "1:3", "a key must be text"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "3:3", "merge keys"),
        ("a: &x [*x]\n", "1:4", "this value contains itself"),
        ("a: 1e999\n", "1:4", "not a number that can be held"),
        ("a: 1\n---\nb: 2\n", "2:1", "; remove --- and what follows"),
        ("a: \x07\n", "1:4", "; remove this character"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_at_its_place(text: str, place: str, says: str):
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml")
    assert str(caught.value).startswith(f"x.yaml:{place}: " if place else "x.yaml: ")
    assert says in str(caught.value)


def test_anchors_are_shared_values():
    assert parse("a: &x {b: 1}\nc: *x\n", "x.yaml").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_anchors_can_not_multiply_without_end():
    levels = "".join(f"l{n + 1}: &l{n + 1} [{', '.join([f'*l{n}'] * 10)}]\n" for n in range(8))
    with pytest.raises(ConfigError, match="anchors multiply"):
        parse("l0: &l0 [x]\n" + levels, "x.yaml")


def test_a_byte_that_is_not_utf8_is_named_with_its_place(tmp_path: Path):
    file = tmp_path / "x.yaml"
    file.write_bytes(b"a: 1\nb: \xc3\xa9\xff\n")
    with pytest.raises(ConfigError, match=r"x.yaml:2:5: this byte is not UTF-8"):
        load(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no such file"):
        load(tmp_path / "x.yaml")
