"""The far end of a step that runs on another host than its run: `PYTHON -P -m dflash.pipeline.distant SPEC.json`.

A spec is {"step": as dflash.pipeline.child takes it, with paths of this machine, "folder": for the step's `lease`,
"patience_s" and "grace_s" as `node.keep` has them}. The step's events are lines of JSON on standard output; all else
that it says goes to standard error. A detached job has both in one log.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from dflash.pipeline.launchers.node import keep

_CHILD = "import sys; from pathlib import Path; from dflash.pipeline.child import main; main(Path(sys.argv[1]))"


def main() -> int:
    """Run the step; its exit status. SIGTERM, which comes to this process alone, is passed on: it saves what it has."""
    spec = json.loads(Path(sys.argv[1]).read_bytes())
    folder = Path(spec["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    lease, file = folder / "lease", folder / "spec.json"
    lease.touch()
    file.write_text(json.dumps(spec["step"]), encoding="utf-8")
    # Its input ends with this process, however that ends, and it then leaves nothing behind.
    with subprocess.Popen([sys.executable, "-P", "-c", _CHILD, str(file)], stdin=subprocess.PIPE) as step:

        def stop(number: int, frame: FrameType | None) -> None:
            step.terminate()

        signal.signal(signal.SIGTERM, stop)
        return keep(step, lease, spec["patience_s"], spec["grace_s"], step.terminate)


if __name__ == "__main__":
    sys.exit(main())
