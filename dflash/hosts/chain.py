"""A chain names a host as the hops that lead to it: `ssh:root@gpu1/pct:200`.

    chain = hop *("/" hop)
    hop   = local | ssh:[user@]host[:port] | sudo[:user] | pct:ID | lxc:NAME | incus:[remote:]NAME
          | lxd:NAME | docker:NAME

Every name is checked against what its own tool accepts, cut down to characters that no shell treats as
special: the words of a hop never need quoting, whatever the login shell.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

from dflash.errors import ChainError


@dataclass(frozen=True)
class Local:
    """This machine."""

    def __str__(self) -> str:
        return "local"


@dataclass(frozen=True)
class Ssh:
    """A machine by SSH. `user` and `port` left out are what ssh_config says. `host` has no brackets."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ssh:{user}{host}" + (f":{self.port}" if self.port else "")


@dataclass(frozen=True)
class Sudo:
    """Another user of the same machine; root when left out."""

    user: str | None = None

    def __str__(self) -> str:
        return f"sudo:{self.user}" if self.user else "sudo"


@dataclass(frozen=True)
class Pct:
    """A Proxmox container by its number."""

    id: int

    def __str__(self) -> str:
        return f"pct:{self.id}"


@dataclass(frozen=True)
class Lxc:
    """An LXC container."""

    name: str

    def __str__(self) -> str:
        return f"lxc:{self.name}"


@dataclass(frozen=True)
class Incus:
    """An Incus instance, on the default remote when `remote` is left out."""

    name: str
    remote: str | None = None

    def __str__(self) -> str:
        return f"incus:{self.remote}:{self.name}" if self.remote else f"incus:{self.name}"


@dataclass(frozen=True)
class Lxd:
    """An LXD instance."""

    name: str

    def __str__(self) -> str:
        return f"lxd:{self.name}"


@dataclass(frozen=True)
class Docker:
    """A running Docker container, by name or id."""

    name: str

    def __str__(self) -> str:
        return f"docker:{self.name}"


Hop = Local | Ssh | Sudo | Pct | Lxc | Incus | Lxd | Docker


@dataclass(frozen=True)
class Chain:
    """One or more hops, outermost first. `str()` gives the text that parses to the same chain."""

    hops: tuple[Hop, ...]

    def __str__(self) -> str:
        return "/".join(str(hop) for hop in self.hops)

    @property
    def is_local(self) -> bool:
        """Whether the chain never leaves this machine and user."""
        return all(isinstance(hop, Local) for hop in self.hops)

    @property
    def container(self) -> Hop | None:
        """The first hop into a container."""
        return next((hop for hop in self.hops if isinstance(hop, Pct | Lxc | Incus | Lxd | Docker)), None)

    @property
    def host(self) -> Chain:
        """The way to the machine that has the kernel: what comes before the first container."""
        return Chain(self.hops[: self.hops.index(self.container)] or (Local(),)) if self.container else self


FORMS = {
    "local": "local",
    "ssh": "ssh:[user@]host[:port]",
    "sudo": "sudo or sudo:user",
    "pct": "pct:ID",
    "lxc": "lxc:NAME",
    "incus": "incus:[remote:]NAME",
    "lxd": "lxd:NAME",
    "docker": "docker:NAME",
}

_USER = r"[A-Za-z_][A-Za-z0-9._-]{0,31}"
_HOST = r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*"
_INSTANCE = r"[A-Za-z](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_CONTAINER = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"

_RULE_USER = "a user name starts with a letter or _ and goes on with letters, digits, '.', '_' or '-'"
_RULE_HOST = "a host is made of letters, digits, '-' and '_' between dots, or an IPv6 address in brackets"
_RULE_INSTANCE = "a name starts with a letter and goes on with at most 62 letters, digits or inner '-'"
_RULE_CONTAINER = "a name starts with a letter or digit and goes on with letters, digits, '_', '.' or '-'"


def parse_chain(text: str) -> Chain:
    """Parse a chain. Raises ChainError naming the hop and the rule it breaks."""
    if not text:
        raise ChainError("the chain is empty", cure="give hops such as local or ssh:root@gpu1/pct:200")
    return Chain(tuple(_hop(text, number, word) for number, word in enumerate(text.split("/"), 1)))


def looks_like_chain(text: str) -> bool:
    """Whether `text` is meant as a chain rather than as a name of the inventory."""
    return ":" in text or "/" in text or text in FORMS


def _hop(text: str, number: int, word: str) -> Hop:
    kind, colon, rest = word.partition(":")

    def broken(rule: str) -> ChainError:
        where = f"chain {text!r}, hop {number} {word!r}"
        return ChainError(rule, where=where, cure=f"write {FORMS[kind]}" if kind in FORMS else None)

    def check(pattern: str, value: str, rule: str) -> str:
        if not re.fullmatch(pattern, value, re.ASCII):
            raise broken(rule)
        return value

    if not word:
        raise broken("a hop is empty: there is a '/' too many")
    if kind not in FORMS:
        near = difflib.get_close_matches(kind, FORMS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known hops: {', '.join(FORMS)}"
        raise broken(f"there is no hop {kind!r}; {hint}")
    if kind == "local":
        if colon:
            raise broken("local takes nothing after it")
        return Local()
    if kind == "sudo" and not colon:
        return Sudo()
    if not rest:
        raise broken(f"{kind} needs {'a user' if kind == 'sudo' else 'a name'} after the ':'")
    match kind:
        case "ssh":
            user, host, port = _ssh_parts(rest, broken)
            if ":" not in host:
                check(_HOST, host, _RULE_HOST)
            return Ssh(host, check(_USER, user, _RULE_USER) if user is not None else None, port)
        case "sudo":
            return Sudo(check(_USER, rest, _RULE_USER))
        case "pct":
            return Pct(int(check(r"[1-9][0-9]{2,8}", rest, "a container's number is from 100 to 999999999")))
        case "incus":
            remote, between, name = rest.rpartition(":")
            check(_INSTANCE, name, _RULE_INSTANCE)
            return Incus(name, check(_CONTAINER, remote, _RULE_CONTAINER) if between else None)
        case "lxd":
            return Lxd(check(_INSTANCE, rest, _RULE_INSTANCE))
        case "lxc":
            return Lxc(check(_CONTAINER, rest, _RULE_CONTAINER))
        case _:
            return Docker(check(_CONTAINER, rest, _RULE_CONTAINER))


def _ssh_parts(rest: str, broken: Callable[[str], ChainError]) -> tuple[str | None, str, int | None]:
    user, at, place = rest.rpartition("@")
    if place.startswith("["):
        address, bracket, after = place[1:].partition("]")
        try:
            host = str(ipaddress.IPv6Address(address if bracket and "%" not in address else ""))
        except ValueError:
            raise broken("what is in brackets is not an IPv6 address (zones are not taken)") from None
        if after and not after.startswith(":"):
            raise broken("only ':port' may follow an address in brackets")
        colon, port = after[:1], after[1:]
    else:
        host, colon, port = place.partition(":")
        if ":" in port:
            raise broken("an IPv6 address must be in brackets")
    if not colon:
        return (user if at else None), host, None
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port, re.ASCII) or int(port) > 65535:
        raise broken("a port is a number from 1 to 65535")
    return (user if at else None), host, int(port)
