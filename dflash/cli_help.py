"""What each option of a verb means, said once for all verbs that have it."""

LOCAL = "pipelines/local.yaml"
HELP = {
    "pipeline": f"The pipeline's YAML file (default: {LOCAL}).",
    "host": "A chain such as ssh:root@gpu1/pct:200, or a name of hosts.yaml; exec and ping take several, with commas.",
    "root": "The folder that holds work/ and runs/ (default: this project's folder).",
    "set": "Change a step's configuration: step.key=value; may be given many times.",
    "json": "Print one JSON document on standard output, and nothing else there.",
    "run": "The run's id (default: the newest). `./inv show ID` does the same.",
    "script": "Send this script along and run it there, with its own interpreter; ARGV are its arguments.",
    "env": "Set a variable for the command: NAME=VALUE; may be given many times.",
    "room": "What to measure: hosts, tools or environments.",
    "detach": "Start it as a job that runs on when you go, and print the job's id.",
    "job": "The job's id.",
    "offset": "The byte of the log to begin at (default: 0).",
    "grace": "Seconds between asking the processes to end and killing them (default: 10).",
    "source": "A file or folder here.",
    "place": "A path there.",
    "target": "Where to put it here.",
    "cwd": "The folder to run in, there.",
    "why": "Give every reason, not only the first.",
    "nightly": "Run the slow tests too.",
    "name": "The environment's name, a folder below envs/.",
    "upgrade": "Let this package move to a newer version; may be given many times.",
    "check": "Change nothing; say whether the lock is stale, and which input has changed.",
    "wheels": "A folder of wheels, which then is the only source.",
    "again": "Make one more from the same lock, to replace a damaged one.",
    "generation": "A generation's id, or its beginning (default: the newest of the lock).",
    "for_run": "The run that needs it.",
    "quick": "Compare sizes, times and RECORDs only.",
    "cached": "Hash only what has changed since it was hashed last.",
    "a": "NAME (what is declared), NAME@HOST (what is in use there), or a run's id.",
    "b": "The other side.",
    "all": "Show what is the same, too.",
    "snapshot": "A snapshot's id, as cache.list shows it.",
    "release": "Let go of it again.",
    "environment": "The host's environment whose Python to use (default: the only one in use there).",
    "folder": "The folder of the compile cache.",
    "to": "The folder to fill (env.wheelhouse: wheelhouse/NAME).",
    "image": "The image to build, one of docker/images.yaml (default: train).",
    "base": "Build on this instead: one of docker/bases.yaml, REPOSITORY@sha256:…, or an image that the engine has.",
    "push": "Push it to REPOSITORY[:TAG] as well.",
    "out": "Put the image's OCI tar here as well.",
    "twice": "Build it twice without a cache, and compare.",
    "reference": "The image by its digest: REPOSITORY@sha256:….",
}


def helped(*names: str) -> dict[str, str]:
    """The help of these options."""
    return {name: HELP[name] for name in names}
