"""What is in an image, as a CycloneDX 1.6 document: the lock's packages, and what the base's package manager lists.

CycloneDX is read by the scanners one has; uv writes it too, but only from a project of its own kind, and BuildKit's
scanner is an image that would have to be pulled. The document is made from the image's own files, and has no clock.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from dflash.environments.installed import parse_metadata
from dflash.environments.lock import Lock

STATUS = "/var/lib/dpkg/status"
RELEASE = ("/etc/os-release", "/usr/lib/os-release")


def wanted(path: str) -> bool:
    """Whether `sbom` reads the file at `path`."""
    return path in (STATUS, *RELEASE) or path.endswith(".dist-info/METADATA")


def sbom(
    name: str, digest: str, labels: Mapping[str, str], contents: Mapping[str, bytes], lock: Lock
) -> dict[str, Any]:
    """The document for the image `name` with that manifest digest; `contents` are its files that `wanted` names."""
    locked = {each.name: each for each in lock.entries}
    components = []
    for path in sorted(contents):
        if path.endswith(".dist-info/METADATA"):
            found, version, *_ = parse_metadata(contents[path].decode("utf-8", "replace"))
            package = canonicalize_name(found)
            entry = locked.get(package)
            components.append(_python(package, version, sorted(entry.hashes) if entry else []))
    components += _debian(contents)
    image = {
        "type": "container",
        "bom-ref": f"pkg:oci/{name}@{quote(digest)}",
        "name": name,
        "version": digest,
        "purl": f"pkg:oci/{name}@{quote(digest)}",
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
        "properties": [{"name": key, "value": value} for key, value in sorted(labels.items())],
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {"component": image},
        "components": components,
    }


def _python(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{quote(version)}"
    component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if hashes:  # of each file that the lock allows: they are hashes of distributions, not of the component
        reference = {
            "type": "distribution",
            "url": purl,  # any index that has these very files
            "comment": "one of these files",
            "hashes": [{"alg": "SHA-256", "content": each} for each in hashes],
        }
        return {**component, "externalReferences": [reference]}
    return component


def _debian(contents: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The packages that dpkg has installed; none in an image without dpkg."""
    release = next((contents[path].decode() for path in RELEASE if path in contents), "")
    told = {key: value.strip('"') for key, value in re.findall(r"^(\w+)=(.*)$", release, re.MULTILINE)}
    vendor = told.get("ID", "debian")
    components = []
    for block in contents.get(STATUS, b"").decode("utf-8", "replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Architecture|Version): (.*)$", block, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            version, architecture = quote(fields["Version"]), fields["Architecture"]
            purl = f"pkg:deb/{vendor}/{quote(fields['Package'])}@{version}?arch={architecture}"
            if "VERSION_ID" in told:
                purl += f"&distro={vendor}-{told['VERSION_ID']}"
            component = {"type": "library", "bom-ref": purl, "name": fields["Package"], "version": fields["Version"]}
            components.append({**component, "purl": purl})
    return components
