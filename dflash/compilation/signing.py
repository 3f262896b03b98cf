"""Signs what the vault keeps, with a secret that this user alone can read."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from dflash.errors import UsageError, storage_error


class Signer:
    """HMAC-SHA256 with the secret in `key_file`, made when it is missing. Hosts that share a vault share it."""

    def __init__(self, key_file: Path) -> None:
        self.key_file = key_file

    def sign(self, content: bytes) -> str:
        """The signature, hexadecimal. Raises UsageError for a key that others can read, or StorageError."""
        return hmac.new(self._secret(), content, hashlib.sha256).hexdigest()

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
