"""`./inv check --host`: a table, one JSON document, and a status that says whether something is wrong."""

from __future__ import annotations

import json

import pytest

from dflash import cli_check
from dflash.cli_help import LOCAL
from dflash.errors import UsageError
from dflash.hosts.failures import HostError
from tests.test_tasks import inv


def check(host: str, **options: object) -> None:
    given = {"fix": False, "pipeline": LOCAL, "root": "", "as_json": False, **options}
    cli_check.check(host=host, **given)  # type: ignore[arg-type]


def test_two_hosts_are_two_tables_and_one_summary() -> None:
    done = inv("check", "--host", "local,ssh:root@127.0.0.1:9")
    assert done.returncode == 1
    assert done.stdout.startswith("local\n")
    assert " ssh " in done.stdout
    assert "2 hosts: 1 ok, 1 failed" in done.stderr
    assert "refused the connection" in done.stderr


def test_one_document_says_all_of_a_host(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check("local", as_json=True)
    (found,) = json.loads(capsys.readouterr().out)["hosts"]
    assert found["host"] == "local"
    assert ended.value.code == (0 if found["ok"] else 1)
    assert {"severity", "subject", "found", "cure", "name", "cause", "layer"} == set(found["findings"][0])


def test_a_host_that_failed_among_several_is_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check("local,ssh:root@127.0.0.1:9", as_json=True)
    found, failed = json.loads(capsys.readouterr().out)["hosts"]
    assert found["host"] == "local"
    assert failed["host"] == "ssh:root@127.0.0.1:9"
    assert "refused the connection" in failed["error"]


def test_what_is_wrong_is_shown_with_the_layer_to_begin_with(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check("local/docker:dflash-nowhere")
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "WRONG" in said
    assert said.endswith("begin with container: what is wrong after it may come from that\n")


def test_a_host_that_is_not_reached_has_the_status_of_those() -> None:
    with pytest.raises(HostError) as raised:
        check("ssh:root@127.0.0.1:9")
    assert raised.value.exit_code == 255


@pytest.mark.parametrize(
    ("host", "options", "says"),
    [
        ("", {"fix": True}, "--fix is for a host; name it"),
        ("local", {"root": "/x"}, "--root: it is not for hosts"),
        ("local", {"pipeline": "other.yaml"}, "--pipeline: it is not for hosts"),
    ],
)
def test_what_does_not_fit_together_is_refused(host: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check(host, **options)
