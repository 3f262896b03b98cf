"""Write a run as TensorBoard's event file: PYTHON to_tensorboard.py FOLDER, told what tracking.py says."""

from __future__ import annotations

import json
import sys


def main() -> int:
    """Write the file; 3 where TensorBoard is not installed."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-not-found]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-not-found]
        from tensorboard.summary.writer.event_file_writer import (  # type: ignore[import-not-found]
            EventFileWriter,
        )
    except ModuleNotFoundError:
        return 3
    run = json.loads(sys.stdin.readline())
    writer = EventFileWriter(sys.argv[1])
    for line in map(json.loads, sys.stdin):
        values = [Summary.Value(tag=name, simple_value=value) for name, value in line.get("metrics", {}).items()]
        if values:
            # When a row was logged nobody noted: all are of the run's end.
            writer.add_event(Event(wall_time=run["ended"], step=line["step"], summary=Summary(value=values)))
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
