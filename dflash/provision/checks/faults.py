"""The kinds of fault a machine can have, by name, each with how such a thing comes about."""

from __future__ import annotations

from dflash.finding import Finding, Severity

CAUSES = {
    "no-answer": "a command sleeps in the kernel, or waits for what is gone",
    # ssh
    "login-noise": "an rc file of the login shell prints, also where no terminal is, and so into sftp, scp and rsync",
    "few-sessions": "sshd_config sets MaxSessions or MaxStartups lower than OpenSSH does",
    "no-root": "the user may not use sudo without a password",
    # host
    "clock-off": "nothing keeps the clock right, or it was set by hand",
    "clock-free": "no NTP client runs, or none reaches a server",
    "too-few-gpus": "the inventory counts GPUs that the machine does not have, or one has failed",
    "gpu-passed-on": "the GPU is bound to vfio-pci, to be given to a virtual machine",
    "nouveau": "the kernel's own driver took the GPU before NVIDIA's",
    "no-driver": "NVIDIA's driver was never installed on the machine that has the kernel",
    "dkms-not-built": "the kernel was updated, and DKMS did not build the module: no headers, or it failed",
    "module-not-loaded": "the module is there, and was not loaded: blacklisted, refused by Secure Boot, or it failed",
    "module-outdated": "the driver was updated while the old module was in use",
    "driver-mismatch": "the libraries were updated and the kernel module was not loaded again, or the other way round",
    "two-drivers": "the driver was installed twice, by packages and by NVIDIA's own installer",
    "no-user-space": "only the kernel module was installed",
    "driver-too-old": "the CUDA build needs a newer kernel driver",
    "smi-hangs": "a process sleeps in the driver, most often after a GPU has died",
    "smi-fails": "the driver does not answer as it should",
    "gpu-lost": "the GPU does not answer on the bus: power, heat, a riser, or the card itself",
    "xid": "the driver logged an error of the GPU",
    "api-mismatch": "a program has other libraries than the kernel module: a container with its own driver, a guest",
    "task-hung": "the kernel waits for the driver, which waits for the GPU",
    "log-unreadable": "the kernel's log is for root only there",
    # devices
    "mig-on": "the GPU is cut into instances; CUDA sees only those that it is given",
    "no-persistence": "no process keeps the driver awake, so that each start wakes every GPU anew, for seconds",
    "ecc-off": "somebody switched it off",
    "ecc-errors": "memory cells of the GPU fail",
    "exclusive": "the compute mode lets one process use the GPU, and another may be it",
    "gpus-busy": "another job runs, or one that was stopped left a process behind",
    "no-node": "nothing made it since the machine started: the driver makes it when it is first used as root",
    "stale-node": "the number is given anew with each load of the module, and the node was made by hand or kept",
    # resources
    "python-not-whole": "python3-minimal was installed, not python3",
    "no-compiler": "none was installed",
    "little-memory": "other programs use it, or the container is given too little",
    "little-disk": "other files fill it, or the file system is small",
    "index-not-reached": "a firewall or proxy is on the way, or the name is wrong",
    # cuda
    "no-libcuda": "the driver's libraries are not installed there, or not brought into the container",
    "nvml": "the driver's libraries do not come through to the kernel module",
    "cuda-init": "CUDA can not begin, which asks for more than nvidia-smi does",
    "cuda-device": "CUDA can not use the GPU",
    "cuda-hangs": "the driver waits for a GPU that does not answer",
    "cuda-probe": "what asks CUDA could not run",
    # docker
    "docker-down": "its daemon does not run, or does not answer this user",
    "no-toolkit": "NVIDIA's container toolkit is not installed beside the engine",
    "no-runtime": "the toolkit is installed, and the engine was not told of it",
    "needs-no-cgroups": "in an unprivileged container the toolkit may not set up a device cgroup, and fails",
    "cdi-stale": "the description was made for another driver, and names files that are gone",
    "lost-on-reload": "systemd resets the devices of a container that it does not know of",
    # many
    "fabric-manager": "the NVSwitches are not set up, and until they are CUDA refuses to begin (status 802)",
    "nvlink-down": "links were not trained, or have failed",
    "no-peers": "a GPU may not read another's memory: the chipset, a virtual machine, or the driver forbids it",
    "iommu": "what one GPU writes to another over PCIe goes through the IOMMU",
    "acs": "bridges send what one GPU writes to another by way of the CPU",
    "memlock-small": "the limit of the login or of the container is the distribution's",
    "small-shm": "a container is given 64 MB where nobody asks for more",
}


def fault(name: str, subject: str, found: str, cure: str, severity: Severity = "block") -> Finding:
    """A finding of the kind `name`."""
    return Finding(severity, subject, found, cure, name, CAUSES[name])
