"""The kinds of problem an environment can have, by name, each with how such a thing comes about."""

from __future__ import annotations

from dflash.finding import Finding, Severity

CAUSES = {
    "changed": "a file was edited in place, or another package's installer wrote over it",
    "removed": "a file was deleted, or an uninstaller took it along",
    "added": "something wrote into the environment after it was made",
    "missing": "a package was uninstalled, or the environment was not finished",
    "extra": "a package was installed by hand",
    "version": "a package was installed again by hand, at another version",
    "twice": "an interrupted installation left two of one package",
    "reinstalled": "a package was installed again by hand, from other files of the same version",
    "two-owners": "two packages bring the same file; the last one installed wrote over the other's",
    "namespace-lost": "packages share the folder nvidia/; uninstalling one takes files of another along",
    "cuda-mixed": "a package that needs another CUDA was installed into this environment, or removed from it again",
    "leftover": "an inference engine was installed into this environment and removed again; pip leaves what it did not"
    " install itself",
    "triton-mismatch": "something installed another triton than the one torch was built for",
    "torch-build": "an index gave another build of torch",
    "other-lock": "requirements.lock has changed since the environment was made",
    "no-record": "making it was interrupted, or its record was removed or written over",
    "unknown-origin": "something else than this project made the environment",
    "ld-library-path": "the loader takes a library of the same name from there before the environment's own",
    "pythonpath": "Python looks there before it looks into the environment",
    "pythonhome": "Python takes its standard library from there",
    "cuda-home": "what compiles at run time takes headers and nvcc from there",
    "system-site": "pyvenv.cfg lets packages in that were installed outside the environment",
    "driver-too-old": "the CUDA build needs a newer kernel driver than the host has",
    "no-driver": "the host has no NVIDIA driver, or the container does not see it",
}


def problem(name: str, subject: str, found: str, cure: str, severity: Severity = "block") -> Finding:
    """A finding of the kind `name`."""
    return Finding(severity, subject, found, cure, name, CAUSES[name])
