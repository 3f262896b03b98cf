"""The rules of docker/: what a Dockerfile has to say, so that its image is the same every time and safe to run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from dflash.images.build import ENVIRONMENT, PROJECT
from tests.images.lab import REPOSITORY

DOCKER = REPOSITORY / "docker"
FILES = sorted(DOCKER.glob("*.Dockerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """(INSTRUCTION, arguments) of a Dockerfile, with continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(line.split(maxsplit=1)[0], " ".join(line.split(maxsplit=1)[1:])) for line in joined]


def values(path: Path, instruction: str) -> list[str]:
    return [arguments for name, arguments in instructions(path) if name == instruction]


def test_there_is_one_for_training_and_one_for_serving():
    assert [path.name for path in FILES] == ["serve.Dockerfile", "train.Dockerfile"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
class TestEachDockerfile:
    def test_takes_its_base_as_an_argument_without_a_default(self, path: Path):
        assert values(path, "ARG")[0] == "BASE"
        outside = [each for each in values(path, "FROM") if not re.match(r"tools |environment-", each)]
        assert outside == ["${BASE} AS tools"]

    def test_asks_for_nothing_by_a_tag(self, path: Path):
        text = path.read_text()
        assert "latest" not in text
        assert not re.search(r"^# *syntax", text, re.MULTILINE)  # would be pulled
        assert set(re.findall(r"from=(\w+)", text)) == {"wheels"}

    def test_runs_as_a_user_with_a_number_that_is_not_root(self, path: Path):
        assert values(path, "USER") == ["10001:10001"]
        assert "10001:10001::/home/dflash" in path.read_text()

    def test_has_an_entry_point_of_words_that_runs_what_it_is_given(self, path: Path):
        (entry,) = (json.loads(each) for each in values(path, "ENTRYPOINT"))
        given = ['a "b" $HOME', "", "two\nlines", "*"]
        done = subprocess.run([*entry, "printf", r"%s\0", *given], capture_output=True, text=True, check=True)
        assert done.stdout.split("\0")[:-1] == given
        assert all(isinstance(json.loads(each), list) for each in values(path, "CMD"))

    def test_makes_the_environment_with_no_network_where_it_has_the_wheels(self, path: Path):
        with_wheels = [each for each in values(path, "RUN") if "from=wheels" in each]
        assert len(with_wheels) == 1
        assert with_wheels[0].startswith("--network=none ")
        assert "--no-index" in with_wheels[0]

    def test_keeps_the_address_of_an_index_out_of_the_layers(self, path: Path):
        assert "type=secret,id=index" in path.read_text()

    def test_copies_the_code_after_everything_else_that_makes_a_layer(self, path: Path):
        made = [name for name, _ in instructions(path) if name in ("RUN", "COPY", "ADD")]
        assert "ADD" not in made
        assert made.count("COPY") == (path.name == "train.Dockerfile")
        assert "COPY" not in made or made[-1] == "COPY"

    def test_says_in_labels_what_it_was_made_from(self, path: Path):
        labels = values(path, "LABEL")[0]
        for argument in ("COMMIT", "LOCK", "BASE_DIGEST", "DIRTY", "ENVIRONMENT"):
            assert f'="{"${"}{argument}}}"' in labels


def test_the_places_in_an_image_are_those_that_verify_reads():
    assert f"COPY project/ {PROJECT}/" in (DOCKER / "train.Dockerfile").read_text()
    assert f"PATH={ENVIRONMENT}/bin:" in (DOCKER / "train.Dockerfile").read_text()
    assert f"place {ENVIRONMENT}" in (DOCKER / "environment.sh").read_text()


def test_the_environment_is_made_without_bytecode_metadata_caches_or_compilation():
    text = (DOCKER / "environment.sh").read_text()
    for word in (
        "UV_NO_INSTALLER_METADATA=1",
        "PYTHONDONTWRITEBYTECODE=1",
        "--no-cache",
        "--require-hashes",
        "--no-build",
    ):
        assert word in text


def test_nothing_writes_the_date_of_a_user():
    for path in [*FILES, *DOCKER.glob("*.sh")]:
        commands = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
        assert not re.search(r"\b(useradd|adduser|groupadd|passwd -|chage)\b", commands)
