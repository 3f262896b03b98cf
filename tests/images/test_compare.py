"""Two images that differ: the first layer and file, and how, are named. The images are small OCI tars made here."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dflash.images.compare import Difference, first_difference
from dflash.images.failures import ImageError
from dflash.images.oci import files_of, open_oci, plain

Member = Mapping[str, Any]
"""`data`, `mode`, `mtime`, `uid`, `type`, `linkname` of a file; all have a default."""

BASE: Mapping[str, Member] = {"etc": {"type": tarfile.DIRTYPE}, "etc/base": {"data": b"base"}}
APP: Mapping[str, Member] = {"app": {"type": tarfile.DIRTYPE}, "app/one": {"data": b"1"}, "app/two": {"data": b"22"}}


def make_oci(path: Path, layers: Sequence[Mapping[str, Member]], level: int = 9, **config: Any) -> Path:
    """An OCI tar of those layers."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    packed = [blob(gzip.compress(_layer(each), level, mtime=0)) for each in layers]
    history = [{"created_by": f"step {number}"} for number in range(1, len(layers) + 1)]
    history.insert(1, {"created_by": "an empty step", "empty_layer": True})  # type: ignore[dict-item]
    about = blob(json.dumps({"config": {"Labels": {"a": "b"}}, "history": history, **config}).encode())
    manifest = blob(json.dumps({"config": about, "layers": packed}).encode())
    blobs["index.json"] = json.dumps({"manifests": [manifest]}).encode()
    with tarfile.open(path, "w") as file:
        for name, data in blobs.items():
            _add(file, name, {"data": data})
    return path


def _layer(members: Mapping[str, Member]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as file:
        for name, member in members.items():
            _add(file, name, member)
    return made.getvalue()


def _add(file: tarfile.TarFile, name: str, member: Member) -> None:
    info, data = tarfile.TarInfo(name), member.get("data", b"")
    info.type, info.mode = member.get("type", tarfile.REGTYPE), member.get("mode", 0o644)
    info.mtime, info.uid, info.linkname = member.get("mtime", 1000), member.get("uid", 0), member.get("linkname", "")
    info.size = len(data)
    file.addfile(info, io.BytesIO(data))


def difference(folder: Path, one: Sequence[Mapping[str, Member]], two: Sequence[Mapping[str, Member]]) -> Difference:
    made = make_oci(folder / "one.tar", one), make_oci(folder / "two.tar", two)
    with open_oci(made[0]) as first, open_oci(made[1]) as second:
        found = first_difference(first, second)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("change", "how", "before", "after"),
    [
        ({"data": b"33"}, "content", hashlib.sha256(b"22").hexdigest(), hashlib.sha256(b"33").hexdigest()),
        ({"data": b"22", "mode": 0o600}, "mode", "0644", "0600"),
        ({"data": b"22", "mtime": 2000}, "time", "1000.0", "2000.0"),
        ({"data": b"22", "mtime": 1000.5}, "time", "1000.0", "1000.5"),
        ({"data": b"22", "uid": 7}, "owner", "0:0", "7:0"),
        ({"type": tarfile.SYMTYPE, "linkname": "one"}, "kind", "file", "2"),
    ],
)
def test_how_a_file_differs_is_said(tmp_path: Path, change: Member, how: str, before: str, after: str):
    found = difference(tmp_path, [BASE, APP, BASE], [BASE, {**APP, "app/two": change}, APP])
    assert found == Difference(2, "step 2", "/app/two", how, before, after)
    assert str(found) == f"layer 2 (step 2): /app/two: {how} differs: {before} and {after}"


def test_a_file_that_only_one_has_is_named(tmp_path: Path):
    fewer = {name: member for name, member in APP.items() if name != "app/one"}
    assert difference(tmp_path, [APP], [fewer]) == Difference(1, "step 1", "/app/one", "presence", "there", "not there")


def test_the_first_of_several_files_is_named(tmp_path: Path):
    changed = {**APP, "app/two": {"data": b"x"}, "app/one": {"data": b"x"}}
    assert difference(tmp_path, [APP], [changed]).path == "/app/one"


def test_another_order_of_the_same_files_is_said(tmp_path: Path):
    found = difference(tmp_path, [APP], [dict(reversed(APP.items()))])
    assert (found.how, found.before, found.after) == ("order", "/app", "/app/two")


def test_a_layer_that_only_one_has_is_said(tmp_path: Path):
    found = difference(tmp_path, [BASE], [BASE, APP])
    assert (found.layer, found.how, found.before, found.after) == (2, "presence", "1 layers", "2 layers")


def test_the_same_files_packed_in_another_way_are_said(tmp_path: Path):
    make_oci(tmp_path / "one.tar", [APP]), make_oci(tmp_path / "two.tar", [APP], level=1)
    with open_oci(tmp_path / "one.tar") as one, open_oci(tmp_path / "two.tar") as two:
        found = first_difference(one, two)
    assert found is not None
    assert found.how == "compression"


def test_a_configuration_that_differs_is_said_by_its_key(tmp_path: Path):
    make_oci(tmp_path / "one.tar", [APP], created="then"), make_oci(tmp_path / "two.tar", [APP], created="now")
    with open_oci(tmp_path / "one.tar") as one, open_oci(tmp_path / "two.tar") as two:
        assert first_difference(one, two) == Difference(0, "", "created", "content", "then", "now")
        assert first_difference(one, one) is None


def test_layers_on_top_of_each_other_give_the_files_of_the_image(tmp_path: Path):
    top: Mapping[str, Member] = {
        "app/.wh.one": {},
        "app/two": {"data": b"new"},
        "app/link": {"type": tarfile.SYMTYPE, "linkname": "two"},
        "app/again": {"type": tarfile.LNKTYPE, "linkname": "app/two"},
        "etc/.wh..wh..opq": {},
    }
    with open_oci(make_oci(tmp_path / "one.tar", [BASE, APP, top])) as image:
        files, contents = files_of(image, lambda path: path == "/app/two")
        assert image.labels == {"a": "b"}
    assert sorted(files) == ["/app", "/app/again", "/app/link", "/app/two", "/etc"]
    assert contents == {"/app/two": b"new"}
    new = [3, hashlib.sha256(b"new").hexdigest()]
    assert [plain(files, files[path]) for path in sorted(files)] == [None, new, [0, "two"], new, None]


def test_a_file_that_is_no_image_is_named(tmp_path: Path):
    path = tmp_path / "text.tar"
    path.write_text("not a tar\n" * 200)
    with pytest.raises(ImageError, match=r"text\.tar: not an OCI image"), open_oci(path):
        pass
