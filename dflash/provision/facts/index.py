"""Whether a machine reaches the package index that its own pip or uv is told of; no other is asked."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.provision.fact import Fact, Output

# The environment first, as uv and pip do; then their files. An address may hold a password: only the host's name is
# printed.
_INDEX = r"""
import glob, os, re, sys
try:
    from urllib import error, parse, request
except ImportError:
    sys.exit("python3 lacks urllib")
named = [os.environ[name] for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL") if os.environ.get(name)]
home = os.path.expanduser("~")
files = [home + "/.config/uv/uv.toml", "/etc/uv/uv.toml", os.environ.get("PIP_CONFIG_FILE", "")]
files += [home + "/.config/pip/pip.conf", home + "/.pip/pip.conf", "/etc/pip.conf"]
for path in files:
    try:
        with open(path) as file:
            named += re.findall(r"^\s*(?:index-url|url)\s*=\s*[\"']?(https?://[^\s\"']+)", file.read(), re.M)
    except OSError:
        pass
if not named:
    sys.exit()
try:
    parts = parse.urlsplit(named[0])
    print(parts.hostname)
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request.urlopen(request.Request(address, method="HEAD"), timeout=5).close()
except error.HTTPError as failure:
    print("" if failure.code < 500 else "it answers %d" % failure.code)  # it may want a password: it is there
except Exception as failure:
    print(getattr(failure, "reason", failure))
"""


@dataclass(frozen=True)
class Index:
    """The host's name of the index, None where none is named; and why it is not reached, "" when it is."""

    host: str | None = None
    problem: str = ""


def _index(output: Output) -> Index:
    if output.hung:
        return Index("the index", "no answer")
    lines = output.stdout.splitlines()
    if not (output.ok and lines):
        return Index()
    return Index(lines[0], lines[1].strip() if len(lines) > 1 else "")


INDEX = Fact("index", ("python3", "-ISc", _INDEX), _index)
