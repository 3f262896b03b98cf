"""Where hosts meet is found out before anything starts, or it is said who does not reach whom."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.connection import Connection
from dflash.hosts.failures import Unreachable
from dflash.hosts.reach import reach
from dflash.pipeline.launchers import meeting as module
from dflash.pipeline.launchers.meeting import meeting
from tests.lab.service import free_port


@pytest.fixture(scope="module")
def here() -> Iterator[Connection]:
    with reach(parse_chain("local")) as connection:
        yield connection


def test_all_meet_at_an_address_of_the_first_by_an_interface_that_each_has(here: Connection):
    address, interfaces = meeting([(here, sys.executable)] * 2, free_port())
    assert len(interfaces) == 2
    assert set(interfaces) <= {name for _, name in socket.if_nameindex()}
    assert meeting([(here, sys.executable)] * 2, free_port(), "127.0.0.1") == ("127.0.0.1", ["lo", "lo"])
    assert address


def test_an_address_that_leads_elsewhere_is_said_to(here: Connection, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    port = free_port()
    said = rf"local: does not reach local at port {port} \(192\.0\.2\.1: .+\); open that port between the hosts"
    with pytest.raises(Unreachable, match=said):
        meeting([(here, sys.executable)] * 2, port, "192.0.2.1")


def test_a_port_that_is_taken_is_named(here: Connection):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=rf"local: port {port} can not be used there: Address already in use"):
            meeting([(here, sys.executable)], port)
