"""What is told there is what is told here."""

from __future__ import annotations

import io
import os

from dflash.pipeline.far import Telling
from dflash.pipeline.following import Replay
from dflash.pipeline.view import Lines


def test_what_a_view_is_told_there_is_told_here_however_it_is_cut():
    read, write = os.pipe()
    telling = Telling(write)
    telling.started("train", "resume", ["it was started"])
    for done in range(4):
        telling.progress("train", done, 3, {"loss": 1.5})
    telling.note("train", "a word")
    telling.finished("train", "ok", 2.0, [])
    telling.say("ended", exit_code=0, error=None)
    os.write(write, b"Warning: of a library\n{}\n")
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    said = io.StringIO()
    replay = Replay(Lines(said, interval_s=0.0))
    for byte in data:
        replay(bytes([byte]))
    assert replay.ended == {"exit_code": 0, "error": None}
    assert [line.split(maxsplit=1)[1] for line in said.getvalue().splitlines()] == [
        "goes on: it was started",
        "0/3  loss 1.5",
        "a word",
        "3/3  loss 1.5",
        "ok after 2.0 s",
        "Warning: of a library",
        "{}",
    ]
