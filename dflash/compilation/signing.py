"""Signs what the vault keeps, with a secret that this user alone can read."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import shlex
import stat
from pathlib import Path
from typing import Literal

from dflash.errors import UsageError, storage_error

VARIABLE = "DFLASH_VAULT_KEY"
"""Names the key file, where several users or hosts share a vault: each has a copy, readable by its user alone."""
_WHICH = b"the name of this key"


class Signer:
    """HMAC-SHA256 with the secret in a key file, made when something is first signed.

    A signature is the HMAC and the name of the key, both hexadecimal. The name proves nothing: it tells a snapshot
    that was damaged since it was signed from one that somebody else signed.
    """

    def __init__(self, key_file: Path | None = None) -> None:
        """The key in `key_file`; or else in the file that DFLASH_VAULT_KEY names; or else in this user's own.

        Raises UsageError when the file that is named is not there: one that is shared is copied, and a new one, made
        unasked because of a slip, would fit nobody else's.
        """
        named = os.environ.get(VARIABLE)
        self.shared = key_file is None and bool(named)
        own = Path.home() / ".dflash" / "vault.key"
        self.key_file = key_file or (Path(os.path.expanduser(named)) if named else own)
        if self.shared and not self.key_file.exists():
            make = f"(umask 077; openssl rand -hex 32 > {shlex.quote(str(self.key_file))})"
            cure = f"copy there the key of a host that shares the vault; for the first one make it: {make}"
            raise UsageError(f"the key that {VARIABLE} names is not there", where=str(self.key_file), cure=cure)

    def sign(self, content: bytes) -> str:
        """The signature. Raises UsageError for a key that others can read, or StorageError."""
        secret = self._secret()
        return f"{_hmac(secret, content)} {_hmac(secret, _WHICH)[:16]}"

    def judge(self, content: bytes, signature: str) -> Literal["right", "changed", "foreign"]:
        """Whether `signature` is ours and that of `content`; ours, but of something else; or not ours. Writes nothing.

        Raises:
            UsageError, StorageError: the key is there and can not be used.
        """
        try:
            secret = self._read()
        except FileNotFoundError:
            return "foreign"
        except OSError as failure:
            raise storage_error(failure, self.key_file) from failure
        said, _, name = signature.partition(" ")
        if hmac.compare_digest(said.encode(), _hmac(secret, content).encode()):
            return "right"
        return "changed" if name == _hmac(secret, _WHICH)[:16] else "foreign"

    def _secret(self) -> bytes:
        try:
            with contextlib.suppress(FileNotFoundError):
                return self._read()
            self.key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = self.key_file.with_name(f".{self.key_file.name}.{secrets.token_hex(4)}")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
                file.flush()
                os.fsync(descriptor)
            with contextlib.suppress(FileExistsError):  # another saver was quicker: its key it is
                os.link(draft, self.key_file)
            draft.unlink()
            return self._read()
        except OSError as failure:
            raise storage_error(failure, self.key_file) from failure

    def _read(self) -> bytes:
        status = self.key_file.stat()
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            what = "the key that signs snapshots must be yours, and readable by you alone"
            raise UsageError(what, where=str(self.key_file), cure="chmod 600, or move it away")
        secret = self.key_file.read_bytes().strip()
        if len(secret) != 64:
            raise UsageError("this is not the key of a vault", where=str(self.key_file), cure="move it away")
        return secret


def _hmac(secret: bytes, content: bytes) -> str:
    return hmac.new(secret, content, hashlib.sha256).hexdigest()
