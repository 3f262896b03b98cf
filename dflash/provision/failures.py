"""What can go wrong while a machine is changed."""

from __future__ import annotations

from dflash.errors import DFlashError


class ActionFailed(DFlashError):
    """A command of a change ended badly, or did not do what it is for. What was done before it stays done."""
