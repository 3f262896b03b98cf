"""Layer 4, the container: it is there, it runs, and its configuration lets the GPUs of now through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dflash.finding import Finding, Severity
from dflash.hosts.chain import Docker, Incus, Lxc, Lxd, Pct
from dflash.provision.checks import passing
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts import docker, incus, lxc, pct
from dflash.provision.facts.nodes import NODES

HOST: tuple[Fact[Any], ...] = (NODES,)
INSIDE: tuple[Fact[Any], ...] = ()

CAUSES = {
    "no-manager": "what makes such containers is not installed there, or the chain leads to another machine",
    "manager-silent": "its daemon does not run, or does not answer this user",
    "no-container": "it was never made there, has another name, or was removed",
    "other-node": "it was migrated, or the chain leads to the wrong node",
    "container-stopped": "it was stopped, failed to start, or does not start with the machine",
    "container-locked": "a backup, a snapshot or a migration holds it, or one died and left its lock",
    "changes-pending": "it was configured while it ran, and takes some changes at its next start only",
    "below-snapshot": "lines were put at the end of the file, which by then belonged to a snapshot",
    "no-toolkit-hook": "nvidia.runtime has the daemon call nvidia-container-cli, which is not installed",
    "no-runtime-set": "a gpu device brings the nodes alone, and the driver's files come by nvidia.runtime",
    **passing.CAUSES,
}


def asked(want: Wanted) -> tuple[Fact[Any], ...]:
    """What of the host depends on which container is meant: beside HOST."""
    match want.container:
        case Pct(number):
            return (pct.NODE, pct.PLACES, pct.conf(number), pct.status(number))
        case Lxc(name):
            return (lxc.PLACE, lxc.state(name), lxc.config(name))
        case Incus() | Lxd():
            return (incus.instance(want.container), incus.TOOLKIT)
        case Docker(name):
            return (docker.container(name),)
        case _:
            return ()


def judge(host: Facts, inside: Facts, want: Wanted) -> Iterator[Finding]:
    """Nothing where no container is on the way, or nothing was asked about it."""
    if not asked(want) or any(fact not in host for fact in asked(want)):
        return
    match want.container:
        case Pct():
            found = list(_pct(host, want.container, want))
        case Lxc():
            found = list(_lxc(host, want.container, want))
        case Incus() | Lxd():
            found = list(_incus(host, want.container, want))
        case Docker():
            found = list(_docker(host, want.container, want))
        case _:
            return
    yield from found
    if not found:
        yield Finding("ok", "container", f"{want.container} runs, and is configured for what is wanted of it")


def _pct(host: Facts, hop: Pct, want: Wanted) -> Iterator[Finding]:
    subject, node = str(hop), host[pct.NODE]
    if node is None:
        yield _fault("no-manager", subject, "this machine is no Proxmox node", "check the chain in hosts.yaml")
        return
    conf, place = host[pct.conf(hop.id)], host[pct.PLACES].get(hop.id)
    if conf is None and place is not None:
        cure = f"lead the chain through {place[0]}, or there: pct migrate {hop.id} {node}"
        yield _fault("other-node", subject, f"it is on node {place[0]}, and this is {node}", cure)
    elif conf is None:
        cure = "see `pct list` there; ./inv provision makes one that is declared"
        yield _fault("no-container", subject, f"node {node} has no container {hop.id}", cure)
    if conf is None:
        return
    if host[pct.status(hop.id)] != "running":
        yield _fault("container-stopped", subject, "it does not run", f"pct start {hop.id}")
    if lock := conf.keys.get("lock"):
        cure = f"wait for it; if nothing is at work: pct unlock {hop.id}"
        yield _fault("container-locked", subject, f"locked ({lock})", cure, "warn")
    if conf.pending:
        yield _fault("changes-pending", subject, "changes wait for its next start", f"pct reboot {hop.id}", "warn")
    devices = [each.get("path", "") for each in conf.numbered("dev").values()]
    below = {
        name: [entry for entry in section.raw if "nvidia" in entry[1] and entry not in conf.raw]
        for name, section in conf.sections.items()
    }
    given = passing.Given(
        str(hop),
        devices=tuple(devices),
        binds=lxc.binds(conf.raw),
        allowed=lxc.allowed(conf.raw),
        unprivileged=conf.keys.get("unprivileged") == "1",
        groups=passing.groups(lxc.values(conf.raw, "lxc.idmap")),
        autostart=conf.keys.get("onboot") == "1",
        elsewhere=passing.elsewhere(conf.raw),
    )
    for name, lines in below.items():
        if lines and not given.gpus:
            cure = "move them above the first line in brackets, or better: pct set with --dev0 /dev/nvidia0, …"
            found = f"{len(lines)} lines for NVIDIA's devices are below [{name}], and count for nothing"
            yield _fault("below-snapshot", subject, found, cure)
    yield from _shown(passing.judge(given, host[NODES], want))


def _lxc(host: Facts, hop: Lxc, want: Wanted) -> Iterator[Finding]:
    subject = str(hop)
    if host[lxc.PLACE] is None:
        yield _fault("no-manager", subject, "there is no LXC", "install lxc there, or check the chain in hosts.yaml")
        return
    text, state = host[lxc.config(hop.name)], host[lxc.state(hop.name)]
    if text is None:
        cure = "see `lxc-ls` there; ./inv provision makes one that is declared"
        yield _fault("no-container", subject, f"{host[lxc.PLACE]} has none of that name", cure)
        return
    if state != "RUNNING":
        cure = f"lxc-{'unfreeze' if state == 'FROZEN' else 'start'} -n {hop.name}"
        yield _fault("container-stopped", subject, f"it is {(state or 'unknown').lower()}", cure)
    entries = lxc.entries(text)
    idmap = lxc.values(entries, "lxc.idmap")
    given = passing.Given(
        str(hop),
        binds=lxc.binds(entries),
        allowed=lxc.allowed(entries),
        unprivileged=bool(idmap),
        groups=passing.groups(idmap),
        autostart=lxc.values(entries, "lxc.start.auto")[-1:] == ("1",),
        elsewhere=passing.elsewhere(entries),
    )
    yield from _shown(passing.judge(given, host[NODES], want))


def _incus(host: Facts, hop: Incus | Lxd, want: Wanted) -> Iterator[Finding]:
    subject, answer, client = str(hop), host[incus.instance(hop)], incus.client(hop)
    if answer.error:
        yield _fault("manager-silent", subject, answer.error, f"start it, and see that `{client} list` answers there")
        return
    found = answer.instance
    if found is None:
        cure = f"see `{client} list` there; ./inv provision makes one that is declared"
        yield _fault("no-container", subject, "there is none of that name", cure)
        return
    if found.status != "Running":
        yield _fault("container-stopped", subject, f"it is {found.status.lower()}", f"{client} start {hop.name}")
    gpus = [each for each in found.expanded_devices.values() if each.get("type") == "gpu"]
    runtime = found.expanded_config.get("nvidia.runtime") == "true"
    everything = any("pci" not in each and "id" not in each for each in gpus)
    if want.gpus > len(gpus) and not everything:
        cure = f"{client} config device add {hop.name} gpu gpu gputype=physical; or ./inv provision"
        yield _fault("no-device", subject, f"it has {len(gpus)} gpu devices, of {want.gpus} wanted", cure)
    if runtime and not host[incus.TOOLKIT]:
        cure = "install nvidia-container-toolkit there, and start the container again"
        yield _fault("no-toolkit-hook", subject, "nvidia.runtime is set, and there is no nvidia-container-cli", cure)
    if gpus and not runtime:
        cure = f"{client} config set {hop.name} nvidia.runtime=true, and start it again"
        yield _fault("no-runtime-set", subject, "it has gpu devices, and nvidia.runtime is not set", cure, "warn")


def _docker(host: Facts, hop: Docker, want: Wanted) -> Iterator[Finding]:
    subject, answer = str(hop), host[docker.container(hop.name)]
    if answer.error:
        cure = "start Docker there, and see that `docker ps` answers this user"
        yield _fault("manager-silent", subject, answer.error, cure)
        return
    found = answer.container
    if found is None:
        cure = "see `docker ps -a` there; ./inv provision makes one that is declared"
        yield _fault("no-container", subject, "there is none of that name", cure)
        return
    if found.state != "running":
        verb = "unpause" if found.state == "paused" else "start"
        yield _fault("container-stopped", subject, f"it is {found.state}", f"docker {verb} {hop.name}")
    nodes = [path for path in found.devices if path.removeprefix("/dev/nvidia").isdigit()]
    count = want.gpus if found.gpus == "all" or found.privileged else len(found.gpus.split(",")) if found.gpus else 0
    if want.gpus > max(count, len(nodes)):
        cure = "if they are not inside: make it anew with --gpus all (declare `gpus: all`, then ./inv provision)"
        given = f"docker inspect tells of {max(count, len(nodes))} GPUs, of {want.gpus} wanted"
        # There are more ways to give GPUs than it tells of; the layers inside see what came of them.
        yield _fault("no-device", subject, given, cure, "warn")


def _shown(found: Sequence[passing.Fault]) -> Iterator[Finding]:
    for each in found:
        yield _fault(each.name, each.subject, each.found, each.cure, each.severity)


def _fault(name: str, subject: str, found: str, cure: str, severity: Severity = "block") -> Finding:
    return Finding(severity, subject, found, cure, name, CAUSES[name])
