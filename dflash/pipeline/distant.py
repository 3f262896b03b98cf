"""The far end of a step that runs on another host than its run: `PYTHON -P -m dflash.pipeline.distant SPEC.json`.

A spec is {"step": as dflash.pipeline.child takes it, with paths of this machine, and with files of relative `inputs`
that "came" along, as request.py has them, "folder": for the step's `lease`, "word": which begins a line that is an
event, "lock" and "of" as `node.at_work` has them, "patience_s" and "grace_s" as `node.keep` does}. A detached job has
one log for all that it says, in which a step may print what looks like an event: so each is a line of its own that
begins with a word which nobody can know.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from dflash.errors import DFlashError
from dflash.pipeline.launchers.node import at_work, keep
from dflash.pipeline.memory import oom_kills
from dflash.pipeline.project import project_of

_CHILD = "import sys; from pathlib import Path; from dflash.pipeline.child import main; main(Path(sys.argv[1]))"


def main() -> int:
    """Run the step; its exit status. SIGTERM, which comes to this process alone, is passed on: it saves what it has."""
    spec = json.loads(Path(sys.argv[1]).read_bytes())
    try:
        with at_work(Path(spec["lock"]), spec["of"]):
            return _run(spec)
    except DFlashError as failure:  # another run works there, or the disk is full
        _tell_error(spec["word"], failure.what, failure.where, failure.cure, failure.exit_code, "exit")
        return failure.exit_code


def _run(spec: Mapping[str, Any]) -> int:
    folder = Path(spec["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    lease, file, kills = folder / "lease", folder / "spec.json", oom_kills()
    lease.touch()
    project = project_of({"inputs": spec["step"]["came"]}, Path(spec["step"]["root"]))
    file.write_text(json.dumps({**spec["step"], "project": str(project)}), encoding="utf-8")
    said, events = os.pipe()
    telling = threading.Thread(target=_pass_on, args=(said, spec["word"]))
    telling.start()
    try:
        # Its input ends with this process, however that ends, and it then leaves nothing behind.
        words = [sys.executable, "-P", "-c", _CHILD, str(file)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=events) as step:
            os.close(events)

            def stop(number: int, frame: FrameType | None) -> None:
                step.terminate()

            signal.signal(signal.SIGTERM, stop)
            status = keep(step, lease, spec["patience_s"], spec["grace_s"], step.terminate)
    finally:
        telling.join()  # all that could write to it have ended
    if status and oom_kills() > kills:
        cure = "free memory there, or make the step smaller in the pipeline"
        _tell_error(spec["word"], "the kernel ended a process of it for want of memory", None, cure, status, "memory")
    return status


def _pass_on(said: int, word: str) -> None:
    with open(said, "rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):  # else its writer was killed
                _tell(word, line)


def _tell(word: str, line: bytes) -> None:
    # In one write, and on a line of its own, whatever the step has just printed.
    os.write(1, b"\n" + word.encode() + b" " + line)


def _tell_error(word: str, what: str, where: str | None, cure: str | None, status: int, reason: str) -> None:
    error = {"event": "error", "what": what, "where": where, "cure": cure, "exit_code": status, "reason": reason}
    _tell(word, json.dumps(error).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
