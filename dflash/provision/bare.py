"""A machine without python3, where the agent can not run: python3-minimal is installed through its `sh` alone."""

from __future__ import annotations

import secrets
import threading

from dflash.errors import DFlashError
from dflash.hosts.chain import Chain
from dflash.hosts.failures import LostConnection
from dflash.hosts.reach import open_shell
from dflash.provision.failures import ActionFailed
from dflash.provision.operations.packages import APT

PATIENCE_S = 900.0
"""How long an installation may take: a lock may be waited for, and a mirror may be slow."""

PACKAGE = "python3-minimal"

# Nothing of it comes from a person: the word is hexadecimal, the rest is constant. Commands read nothing, since what
# they could read is this script. sudo drops the environment, so that is set anew behind it.
_SCRIPT = """\
install_python() {{
  LC_ALL=C
  export LC_ALL
  if [ "$(id -u)" = 0 ]; then
    as=
  elif sudo -n true; then
    as="sudo -n"
  else
    echo "this needs root" >&2
    return 77
  fi
  if command -v apt-get >/dev/null 2>&1; then
    $as env LC_ALL=C sh -c '{apt}' sh {package}
  elif command -v dnf >/dev/null 2>&1; then
    $as dnf -q -y install python3
  else
    echo "there is neither apt nor dnf" >&2
    return 78
  fi
}}
install_python </dev/null >/dev/null
echo {word} $?
exit
"""


def script(word: str) -> bytes:
    """What goes to `sh -s`; it says `word` and the status of the installation at its end."""
    # A single quote ends the quoting, a quoted one follows, and the quoting goes on.
    quoted = APT.replace("'", "'\\''")
    return _SCRIPT.format(apt=quoted, package=PACKAGE, word=word).encode()


def install_python(chain: Chain) -> None:
    """Install python3-minimal at the end of `chain`.

    Raises:
        ActionFailed: it could not be installed; with what the package manager said last.
        LostConnection: the way there broke, or nothing came of it in PATIENCE_S.
    """
    word = f"dflash-{secrets.token_hex(8)}"
    stream = open_shell(chain)
    patience = threading.Timer(PATIENCE_S, stream.abort)
    patience.start()
    try:
        stream.write(script(word))
        seen = b""
        while f"{word} ".encode() not in seen or not seen.endswith(b"\n"):
            data = stream.read()
            if not data:
                break
            seen += data
        said = stream.errors().strip().splitlines()
    except OSError as failure:
        raise LostConnection(str(failure), layer=str(chain)) from failure
    finally:
        patience.cancel()
        patience.join()
        stream.close()
    _judge(seen.decode(errors="replace").partition(f"{word} ")[2].strip(), said, str(chain))


def _judge(status: str, said: list[str], layer: str) -> None:
    last = f": {said[-1]}" if said else ""
    if not status:
        raise LostConnection(f"the connection was lost while {PACKAGE} was installed{last}", layer=layer)
    if status != "0":
        cure: str | None = "install python3 there by hand, and try again"
        if status == "77":
            cure = "log in as root, or allow the user sudo with NOPASSWD"
        failure: DFlashError = ActionFailed(
            f"python3: installing {PACKAGE} ended with {status}{last}", where=layer, cure=cure
        )
        raise failure
