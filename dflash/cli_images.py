"""What the verbs of images do: build, and image.verify."""

from __future__ import annotations

from pathlib import Path

from dflash.cli import HOME, print_json, root_of


def build(*, name: str, base: str, wheels: str, push: str, out: str, check: bool, root: str, as_json: bool) -> None:
    """Build an image and say its digest; with `check`, build it twice and compare.

    Raises NotReproducible when the two differ.
    """
    from dflash.images.build import Wish
    from dflash.images.build import build as build_image
    from dflash.images.failures import NotReproducible

    wish = Wish(
        name=name,
        base=base,
        wheels=Path(wheels).expanduser().resolve() if wheels else None,
        push=push,
        out=Path(out).expanduser() if out else None,
        check=check,
    )
    built = build_image(wish, HOME, root_of(root))
    difference = built.difference
    if as_json:
        told = {**built.record, "difference": difference.to_json() if difference else None}
        print_json(told if difference else {**told, "folder": str(built.folder)})
    elif not difference:
        print(built.digest)
    if difference:
        cure = "the step that made the layer writes something of its time or place: name it there, or remove it"
        raise NotReproducible(f"two builds differ: {difference}", where=name, cure=cure)


def verify(*, reference: str, host: str, root: str, as_json: bool) -> None:
    """Read an image from inside on a host, and judge it. Raises EnvironmentMismatch when something blocks."""
    from dflash.hosts.inventory import find_host
    from dflash.images.verify import verify_image
    from dflash.pipeline.show import console_on
    from dflash.provision.check import require
    from dflash.provision.table import print_table

    findings = verify_image(reference, find_host(host, HOME / "hosts.yaml"), HOME, root_of(root))
    result = {
        "image": reference,
        "findings": [each.to_json() for each in findings],
        "ok": all(each.severity != "block" for each in findings),
    }
    if as_json:
        print_json(result)
    else:
        print_table(findings, console_on())
    require(result)
