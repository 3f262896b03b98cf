"""docker/bases.yaml and images.yaml: what is declared is read, and what is wrong in them is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.environments import read_spec
from dflash.errors import ConfigError, UsageError
from dflash.images.bases import chosen, parse_pinned, parse_tagged, read_bases, read_images
from tests.images.lab import REPOSITORY

DOCKER = REPOSITORY / "docker"
DIGEST = "sha256:" + "0123456789abcdef" * 4
GOOD = f"one:\n  repository: some/image\n  release: '1.0'\n  digest: {DIGEST}\n"


def test_each_image_of_the_project_has_a_dockerfile_and_an_environment():
    bases = read_bases(DOCKER / "bases.yaml")
    images = read_images(DOCKER / "images.yaml", bases)
    assert {"train", "serve", "train-cu130", "train-cu128", "serve-sglang", "local"} <= images.keys()
    for image in images.values():
        assert (DOCKER / image.dockerfile).is_file()
        spec = read_spec(REPOSITORY / "envs" / image.environment / "env.yaml")
        if image.base:
            assert bases[image.base].release.startswith(spec.cuda or "never"), image


def test_a_base_gets_its_packages_from_an_archive_of_one_moment():
    for base in read_bases(DOCKER / "bases.yaml").values():
        assert bool(base.packages) == bool(base.sources)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (GOOD.replace(DIGEST, "sha256:12"), "bases.yaml:4:11: 'sha256:12' is not a digest"),
        (GOOD.replace("some/image", "some/image:1.0"), "bases.yaml:2:15: 'some/image:1.0' is not a repository"),
        (GOOD.replace("some/image", "some/image@sha256"), "bases.yaml:2:15: 'some/image@sha256' is not a repository"),
        (GOOD + "  tag: x\n", "bases.yaml:5:3: unknown key 'tag'"),
        (GOOD + "  mirrors: other\n", "bases.yaml:5:12: must be"),
        (GOOD + "  packages: [--force]\n", "bases.yaml:5:14: '--force' is not the name of a Debian package"),
        (GOOD + "  sources: [deb http://a/ x main]\n", "is not a line `deb ADDRESS/DATE SUITE …`"),
        (GOOD.replace(f"  digest: {DIGEST}\n", ""), "bases.yaml:2:3: the key 'digest' is missing"),
        ("One: {}\n", "bases.yaml:1:1: 'One' is not a name"),
        ("- one\n", "bases.yaml:1:1: this is a map from names to bases"),
    ],
)
def test_what_is_wrong_in_bases_is_named_with_its_line(tmp_path: Path, wrong: str, said: str):
    file = tmp_path / "bases.yaml"
    file.write_text(wrong)
    with pytest.raises(ConfigError) as raised:
        read_bases(file)
    assert said in str(raised.value)


def test_an_image_on_a_base_that_is_not_declared_is_named_with_its_line(tmp_path: Path):
    bases, images = tmp_path / "bases.yaml", tmp_path / "images.yaml"
    bases.write_text(GOOD)
    images.write_text("small: {dockerfile: a.Dockerfile, environment: small, base: onne}\n")
    with pytest.raises(ConfigError, match=r"images.yaml:1:61: there is no base 'onne'; did you mean 'one'\?"):
        read_images(images, read_bases(bases))


def test_a_name_that_is_no_image_gets_the_nearest():
    images = read_images(DOCKER / "images.yaml", read_bases(DOCKER / "bases.yaml"))
    with pytest.raises(UsageError, match="there is no image 'train-cu13'; did you mean 'train-cu130'"):
        chosen(images, "train-cu13")


@pytest.mark.parametrize("reference", ["some/image", "some/image:1.0", f"some/image:1.0@{DIGEST}", "a@sha256:12", ""])
def test_an_image_to_verify_is_named_by_its_digest(reference: str):
    with pytest.raises(UsageError, match="is not an image by its digest; a tag can be moved"):
        parse_pinned(reference)
    assert parse_pinned(f"host:5000/some/image@{DIGEST}") == ("host:5000/some/image", DIGEST)


def test_where_to_push_may_have_a_tag_and_no_digest():
    assert parse_tagged("host:5000/some/image", "abc") == ("host:5000/some/image", "abc")
    assert parse_tagged("host:5000/some/image:v1", "abc") == ("host:5000/some/image", "v1")
    with pytest.raises(UsageError, match="is not a place to push to"):
        parse_tagged(f"some/image@{DIGEST}", "abc")
