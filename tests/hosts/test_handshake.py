"""What a far end says before the agent runs is kept, however it ends."""

from __future__ import annotations

from dflash.hosts.handshake import Refusal, shake
from dflash.hosts.stream import ProgramStream


def test_what_a_far_end_printed_that_had_ended_before_anything_was_sent_is_told():
    """As a login shell does whose rc file exits: whether it is still there when the first line comes is chance."""
    stream = ProgramStream(["sh", "-c", "echo 'This account is closed.'; exit 1"])
    try:
        assert stream.status(5) == 1
        assert shake(stream) == Refusal(None, 1, "", "This account is closed.\n")
    finally:
        stream.close()
