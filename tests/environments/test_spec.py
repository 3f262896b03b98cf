from __future__ import annotations

from pathlib import Path

import pytest

from dflash.environments import read_spec
from dflash.errors import ConfigError

GOOD = 'name: x\npython: ">=3.11"\ntorch: "2.13.0+cpu"\ntorch_backend: cpu\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "env.yaml"
    path.write_text(text)
    return path


def test_what_is_left_out_is_a_cpu_environment(tmp_path: Path) -> None:
    spec = read_spec(write(tmp_path, GOOD))
    assert (spec.cuda, spec.min_driver, spec.notes) == (None, None, "")


@pytest.mark.parametrize(
    ("change", "place", "what"),
    [
        (("torch_backend: cpu", "torch_backend: cup"), 4, "'cpu'"),
        (("name: x", "name: x\nnotse: y"), 2, "did you mean 'notes'"),
        ((">=3.11", "3.11 or so"), 2, "is not a version range"),
        (("2.13.0+cpu", "newest"), 3, "is not a version"),
        (('"2.13.0+cpu"', "2.13"), 3, "string"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, change: tuple[str, str], place: int, what: str) -> None:
    path = write(tmp_path, GOOD.replace(*change))
    with pytest.raises(ConfigError, match=what) as caught:
        read_spec(path)
    assert caught.value.line == place
