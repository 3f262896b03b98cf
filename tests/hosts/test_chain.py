"""Chains: what they mean, what is refused and why, and that their words need no quoting."""

from __future__ import annotations

import ipaddress
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.errors import ChainError
from dflash.hosts.chain import (
    Chain,
    Docker,
    Incus,
    Local,
    Lxc,
    Lxd,
    Pct,
    Ssh,
    Sudo,
    looks_like_chain,
    parse_chain,
)


@pytest.mark.parametrize(
    ("text", "hops"),
    [
        ("local", (Local(),)),
        ("ssh:gpu1", (Ssh("gpu1"),)),
        ("ssh:root@gpu1.example.org:2222/pct:200", (Ssh("gpu1.example.org", "root", 2222), Pct(200))),
        ("ssh:ops@[2001:db8::7]:22/sudo", (Ssh("2001:db8::7", "ops", 22), Sudo())),
        ("ssh:[::1]", (Ssh("::1"),)),
        ("sudo:build/lxc:a.b_c", (Sudo("build"), Lxc("a.b_c"))),
        ("incus:eu:web1/docker:x/lxd:box", (Incus("web1", "eu"), Docker("x"), Lxd("box"))),
        ("incus:web1", (Incus("web1"),)),
        ("ssh:a/ssh:b/ssh:c", (Ssh("a"), Ssh("b"), Ssh("c"))),
    ],
)
def test_a_chain_is_its_hops_and_reads_back_as_it_was_written(text: str, hops: tuple):
    assert parse_chain(text) == Chain(hops)
    assert str(parse_chain(text)) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the chain is empty"),
        ("ssh:a//pct:200", "hop 2 '': a hop is empty"),
        ("local/", "hop 2 '': a hop is empty"),
        ("shh:gpu1", "hop 1 'shh:gpu1': there is no hop 'shh'; did you mean 'ssh'?"),
        ("gpu1", "there is no hop 'gpu1'; known hops: local, ssh"),
        ("local:x", "local takes nothing after it"),
        ("ssh:", "ssh needs a name after the ':'; write ssh:[user@]host[:port]"),
        ("ssh:a/pct", "hop 2 'pct': pct needs a name"),
        ("sudo:", "sudo needs a user"),
        ("ssh:-oProxyCommand=x", "a host is made of"),
        ("ssh:a b", "a host is made of"),
        ("ssh:@gpu1", "a user name starts with"),
        ("ssh:$(id)@gpu1", "a user name starts with"),
        ("ssh:gpu1:0", "a port is a number from 1 to 65535"),
        ("ssh:gpu1:70000", "a port is a number from 1 to 65535"),
        ("ssh:gpu1:", "a port is a number"),
        ("ssh:gpu1:٣", "a port is a number"),
        ("ssh:::1", "an IPv6 address must be in brackets"),
        ("ssh:[::1", "what is in brackets is not an IPv6 address"),
        ("ssh:[fe80::1%eth0]", "what is in brackets is not an IPv6 address"),
        ("ssh:[::1]22", "only ':port' may follow"),
        ("pct:20", "a container's number is from 100 to 999999999; write pct:ID"),
        ("pct:0200", "a container's number"),
        ("pct:two", "a container's number"),
        ("lxd:1box", "a name starts with a letter"),
        ("incus:a:b:c", "a name starts with a letter or digit"),
        ("incus::c", "a name starts with a letter or digit"),
        ("docker:a;reboot", "a name starts with a letter or digit"),
        ("docker:a\n", "a name starts with a letter or digit"),
        ("docker:é", "a name starts with a letter or digit"),
    ],
)
def test_a_broken_chain_names_the_hop_and_the_rule(text: str, says: str):
    with pytest.raises(ChainError) as caught:
        parse_chain(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


_USERS = st.from_regex(r"[A-Za-z_][A-Za-z0-9._-]{0,31}", fullmatch=True)
_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}", fullmatch=True)
_INSTANCES = st.from_regex(r"[A-Za-z]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?", fullmatch=True)
_DOMAINS = st.lists(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,20}", fullmatch=True), min_size=1, max_size=4)
_HOSTS = _DOMAINS.map(".".join) | st.ip_addresses(v=6).map(lambda address: str(ipaddress.IPv6Address(address)))
_HOPS = st.one_of(
    st.just(Local()),
    st.builds(Ssh, _HOSTS, st.none() | _USERS, st.none() | st.integers(1, 65535)),
    st.builds(Sudo, st.none() | _USERS),
    st.builds(Pct, st.integers(100, 999_999_999)),
    st.builds(Lxc, _NAMES),
    st.builds(Incus, _INSTANCES, st.none() | _NAMES),
    st.builds(Lxd, _INSTANCES),
    st.builds(Docker, _NAMES),
)


@given(st.lists(_HOPS, min_size=1, max_size=6))
def test_every_chain_reads_back_as_it_was_written(hops: list):
    chain = Chain(tuple(hops))
    assert parse_chain(str(chain)) == chain


@given(st.lists(_HOPS, min_size=1, max_size=4))
def test_no_word_of_a_hop_needs_quoting(hops: list):
    for hop in hops:
        for word in vars(hop).values():
            assert word is None or shlex.quote(str(word)) == str(word)


@given(st.text(max_size=30) | st.text(alphabet="/:@[]slhpctudo019-_ $", max_size=30))
def test_any_text_is_a_chain_or_a_chain_error(text: str):
    try:
        chain = parse_chain(text)
    except ChainError:
        return
    assert parse_chain(str(chain)) == chain


def test_names_of_the_inventory_are_told_from_chains():
    assert not looks_like_chain("gpu1")
    assert all(looks_like_chain(text) for text in ("local", "sudo", "ssh:gpu1", "a/b"))
    assert parse_chain("local/local").is_local
    assert not parse_chain("local/sudo").is_local


@pytest.mark.parametrize(
    ("chain", "host", "container"),
    [
        ("local", "local", None),
        ("ssh:root@gpu1", "ssh:root@gpu1", None),
        ("ssh:root@gpu1/pct:200", "ssh:root@gpu1", "pct:200"),
        ("ssh:a/sudo/lxc:b/docker:c", "ssh:a/sudo", "lxc:b"),
        ("docker:c", "local", "docker:c"),
    ],
)
def test_the_host_is_what_comes_before_the_first_container(chain: str, host: str, container: str | None):
    parsed = parse_chain(chain)
    assert str(parsed.host) == host
    assert parsed.container == (parse_chain(container).hops[0] if container else None)
