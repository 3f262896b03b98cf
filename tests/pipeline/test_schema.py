"""What a pipeline's file may say, and where each mistake is."""

from __future__ import annotations

import pytest

from dflash.errors import ConfigError, UsageError
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.launchers.config import Slurm, Threads, Torchrun
from dflash.pipeline.policy import REASONS, Limits, Retry
from dflash.pipeline.schema import load_pipeline
from tests.pipeline.lab import Lab
from tests.pipeline.sample_kinds import Optimizer, TrainConfig

TARGET = "  - {name: target, uses: target}\n"
TRAIN = "  - name: train\n    uses: train\n    needs: [target]\n"


def only(keys: str) -> str:
    """A pipeline of one step that declares these keys."""
    return f"name: x\nsteps:\n  - {{name: a, uses: target, {keys}}}\n"


def trained(keys: str) -> str:
    """A pipeline whose training declares these keys, from line 7 on."""
    return f"name: x\nsteps:\n{TARGET}{TRAIN}    {keys}\n"


def test_a_step_has_its_kinds_config_with_defaults(lab: Lab):
    pipeline = lab.load()
    assert pipeline.step("train").config == TrainConfig(steps=5, optimizer=Optimizer(lr=0.001))
    assert pipeline.step("train").takes == {"target": "target"}
    assert pipeline.step("prewarm").borrows == "train"


def test_steps_come_after_their_needs_and_else_as_in_the_file(lab: Lab):
    step = "  - {{name: {0}, uses: target, needs: [{1}]}}\n"
    pairs = [("d", "b, c"), ("z", ""), ("c", "a"), ("b", "a"), ("a", ""), ("e", "")]
    lab.file.write_text("name: x\nsteps:\n" + "".join(step.format(*pair) for pair in pairs))
    assert [each.name for each in lab.load().steps] == ["z", "a", "c", "b", "d", "e"]


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("- a\n", "1:1", "must be a map, not a list"),
        ("name: x\n", "1:1", "the key 'steps' is missing"),
        ("name: x\nsteps: []\n", "2:8", "should have at least 1 item"),
        ("name: x\nstepz:\n" + TARGET, "2:1", "unknown key 'stepz'; did you mean 'steps'?"),
        ("name: X y\nsteps:\n" + TARGET, "1:7", "'X y' is no name: a name is made of"),
        ("name: x\nsteps:\n  - {name: a/b, uses: target}\n", "3:12", "'a/b' is no name"),
        ("name: x\nsteps:\n  - {name: a, use: target}\n", "3:15", "unknown key 'use'; did you mean 'uses'?"),
        ("name: x\nsteps:\n  - {name: a}\n", "3:5", "the key 'uses' is missing"),
        ("name: x\nsteps:\n  - {name: a, uses: 7}\n", "3:21", "must be a valid string, not 7"),
        ("name: x\nsteps:\n  - {name: a, uses: tagret}\n", "3:21", "did you mean 'target'?"),
        ("name: x\nsteps:\n  - {name: a, uses: zzz}\n", "3:21", "known kinds: check, evaluate"),
        ("name: x\nsteps:\n  - {name: a, uses: target, needs: b}\n", "3:36", 'must be a list, not "b"'),
        (
            f"name: x\nsteps:\n{TARGET}{TARGET}",
            "4:12",
            "the name 'target' is already given to a step on line 3",
        ),
        (
            f"name: x\nsteps:\n{TARGET}{TRAIN}".replace("[target]", "[targt]"),
            "6:13",
            "did you mean 'target'?",
        ),
        (f"name: x\nsteps:\n{TARGET}{TRAIN}".replace("[target]", "[target, target]"), "6:21", "needed twice"),
        (f"name: x\nsteps:\n{TARGET}  - {{name: t, uses: train}}\n", "4:5", "add 'target' to its needs"),
        ("name: x\nsteps:\n  - {name: t, uses: train}\n", "3:5", "add a step that uses target"),
        (
            "name: x\nsteps:\n  - {name: a, uses: target}\n  - {name: b, uses: target}\n"
            "  - {name: t, uses: train, needs: [a, b]}\n",
            "5:35",
            "takes one target, and needs a and b",
        ),
        (f"name: x\nsteps:\n{TARGET}{TRAIN}    with: {{stps: 3}}\n", "7:12", "did you mean 'steps'?"),
        (
            f"name: x\nsteps:\n{TARGET}{TRAIN}    with: {{steps: '3'}}\n",
            "7:19",
            'must be a valid integer, not "3"',
        ),
        (
            f"name: x\nsteps:\n{TARGET}{TRAIN}    with: {{steps: true}}\n",
            "7:19",
            "must be a valid integer, not true",
        ),
        (f"name: x\nsteps:\n{TARGET}{TRAIN}    with: {{steps: 0}}\n", "7:11", "steps must be at least 1"),
        (f"name: x\nsteps:\n{TARGET}{TRAIN}    with: 3\n", "7:11", "must be a map, not 3"),
        (
            f"name: x\nsteps:\n{TARGET}{TRAIN}    with:\n      optimizer:\n        betas: [0.9, x]\n",
            "9:22",
            'must be a valid number, not "x"',
        ),
        (
            f"name: x\nsteps:\n{TARGET}{TRAIN}    with:\n      optimizer:\n        lrr: 1\n",
            "9:9",
            "unknown key 'lrr'; did you mean 'lr'?",
        ),
        (
            "name: x\nsteps:\n  - {name: w, uses: prewarm, with: {for_step: trian}}\n" + TARGET + TRAIN,
            "3:47",
            "for_step names 'trian', which is no other step; did you mean 'train'?",
        ),
        (
            "name: x\nsteps:\n  - {name: w, uses: prewarm}\n",
            "3:5",
            "for_step names 'train', which is no other",
        ),
        (
            "name: x\nsteps:\n  - {name: a, uses: target, needs: [c]}\n"
            "  - {name: b, uses: target, needs: [a]}\n  - {name: c, uses: target, needs: [b]}\n",
            "3:37",
            "steps need each other in a circle: a -> c -> b -> a",
        ),
        ("name: x\nsteps:\n  - {name: a, uses: target, needs: [a]}\n", "3:37", "in a circle: a -> a"),
    ],
)
def test_a_mistake_is_named_with_its_place(lab: Lab, text: str, place: str, says: str):
    lab.file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        lab.load()
    assert str(caught.value).startswith(f"{lab.file}:{place}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "place", "says"),
    [
        ("timeout: 20 min", "3:38", "'20 min' is no duration: write 90s, 20m, 4h, 2d or a number of seconds above 0"),
        ("timeout: true", "3:38", "True is no duration"),
        ("no_output_timeout: -5", "3:48", "-5 is no duration"),
        ("timout: 5s", "3:29", "unknown key 'timout'; did you mean 'timeout'?"),
        ("retry: 0", "3:36", "must be greater than or equal to 1, not 0"),
        ("retry: many", "3:36", 'must be a map, not "many"'),
        ("retry: {backoff: 1s}", "3:36", "the key 'attempts' is missing"),
        ("retry: {attempts: 2, jitter: 2}", "3:58", "must be less than or equal to 1, not 2"),
        ("retry: {attempts: 2, max_backof: 2s}", "3:50", "did you mean 'max_backoff'?"),
        ("retry: {attempts: 2, on: []}", "3:54", "should have at least 1 item"),
        ("retry: {attempts: 2, on: [time out]}", "3:55", "did you mean 'timeout'?"),
        ("retry: {attempts: 2, on: [lost connection]}", "3:55", "did you mean 'lost_connection'?"),
        ("retry: {attempts: 2, on: [timeout, 256]}", "3:64", "256 is no reason and no exit status from 1 to 255"),
        ("inputs: ['']", "3:38", "should have at least 1 character"),
        ("inputs: corpus", "3:37", 'must be a list, not "corpus"'),
        ("outputs: [/tmp/x]", "3:39", "'/tmp/x' is no pattern of files below the step's own folder"),
        ("outputs: [a/../../b]", "3:39", "is no pattern of files below"),
        ("outputs: [.]", "3:39", "is no pattern of files below"),
        ("outputs: [a**b]", "3:39", "is no pattern of files below"),
        ("env: {OMP-THREADS: '1'}", "3:35", "'OMP-THREADS' can not name a variable"),
        ("env: {DEBUG: true}", "3:42", "True is not text; put it in quotes"),
        ('matrix: {x: ["a\\0b"]}, env: {A: "${{ matrix.x }}"}', "3:61", "has a NUL, which no variable can hold"),
        ("env: {RATE: 1.50}", "3:41", "1.5 is not text; put it in quotes"),
        (
            "secrets: [hf_token]",
            "3:39",
            "'hf_token' names no secret: write the name of a variable in capitals, as in HF_TOKEN",
        ),
        ("secrets: [HF_TOKEN], env: {HF_TOKEN: x}", "3:56", "HF_TOKEN is among the secrets, too"),
        ("host: gpu 1", "3:35", "'gpu 1' names no host; write a name of hosts.yaml, or a chain"),
        ("host: 'shh:gpu1'", "3:35", "there is no hop 'shh'; did you mean 'ssh'?"),
        ("host: gpu1, secrets: [HF_TOKEN]", "3:41", "a step elsewhere is given no secrets; leave its secrets out"),
        ("host: gpu1, inputs: [README.md]", "3:41", "files of this machine are not brought to the host of a step"),
        ("launcher: torchrun", "3:29", "a step of kind 'target' has no workers to start"),
        ("when: 3", "3:35", "must be a valid string, not 3"),
        ("when: steps.b.status == 'ok'", "3:35", "there is no step 'b'"),
        ("when: host.gpus > 1 and hots.gpus < 3", "3:53", "there is no 'hots' to ask for; did you mean 'host'?"),
        ("when: 'host.gpus > 1 and host.gpu < 3'", "3:54", "host has no 'gpu'; did you mean 'gpus'?"),
        ("when: failed", "3:35", "only a step of finally: may ask whether one failed before"),
    ],
)
def test_a_mistake_in_what_a_step_declares_is_named_with_its_place(lab: Lab, keys: str, place: str, says: str):
    lab.file.write_text(only(keys))
    with pytest.raises(ConfigError) as caught:
        lab.load()
    assert str(caught.value).startswith(f"{lab.file}:{place}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "place", "says"),
    [
        ("launcher: torchrnu", "7:15", "there is no launcher 'torchrnu'; did you mean 'torchrun'?"),
        ("launcher: {hosts: [a]}", "7:15", "say its kind; known launchers: slurm, threads, torchrun"),
        ("launcher: {kind: torchrun, host: [a]}", "7:32", "unknown key 'host'; did you mean 'hosts'?"),
        ("launcher: {kind: torchrun, hosts: [a b]}", "7:40", "'a b' names no host"),
        ("launcher: {kind: torchrun, hosts: [a, b, a]}", "7:46", "'a' is named twice; remove one"),
        ("launcher: {kind: torchrun, hosts: [a], port: 0}", "7:15", "port is from 1 to 65535, not 0"),
        (
            "host: a\n    launcher: {kind: torchrun, hosts: [b]}",
            "7:5",
            "its launcher names hosts, too; remove its host",
        ),
        ("launcher: slurm\n    secrets: [A]", "8:5", "a step in a Slurm job, whose variables Slurm writes to files,"),
        ("launcher: {kind: torchrun, hosts: [a]}\n    secrets: [A]", "8:5", "a step elsewhere is given no secrets"),
        ("with: {launcher: processes}", "7:12", "the launcher is the step's own; write launcher: torchrun (or"),
        ("launcher: {kind: slurm, nodes: two}", "7:36", 'must be a valid integer, not "two"'),
        ("when: steps.trget.status == 'ok'", "7:11", "there is no step 'trget'; did you mean 'target'?"),
    ],
)
def test_a_mistake_in_what_a_training_declares_is_named_with_its_place(lab: Lab, keys: str, place: str, says: str):
    lab.file.write_text(trained(keys))
    with pytest.raises(ConfigError) as caught:
        lab.load()
    assert str(caught.value).startswith(f"{lab.file}:{place}: ")
    assert says in str(caught.value)


def test_what_a_step_declares_is_read(lab: Lab):
    lab.file.write_text(
        only(
            "retry: {attempts: 4, on: [lost_connection, exit, 75], backoff: 1m, max_backoff: 2h, jitter: 0}, "
            "timeout: 2d, no_output_timeout: 90.5, inputs: [docs/*.md], outputs: ['**/*.txt'], "
            "env: {OMP_NUM_THREADS: 4, NAME: text}, secrets: [HF_TOKEN], when: host.gpus == 0"
        )
    )
    step = lab.load().step("a")
    assert step.retry == Retry(4, ("lost", "exit", 75), 60.0, 7200.0, 0.0)
    assert step.limits == Limits(172800.0, 90.5)
    assert (step.inputs, step.outputs) == (("docs/*.md",), ("**/*.txt",))
    assert (step.env, step.secrets) == ({"OMP_NUM_THREADS": "4", "NAME": "text"}, ("HF_TOKEN",))
    assert (step.when, step.is_last) == ("host.gpus == 0", False)
    lab.file.write_text(only("host: ssh:root@gpu1"))
    assert lab.load().step("a").host == "ssh:root@gpu1"


def test_a_step_that_declares_nothing_has_the_policys_own_defaults(lab: Lab):
    step = lab.load().step("train")
    assert (step.retry, step.limits, step.launcher, step.host) == (Retry(), Limits(), None, None)


def test_a_number_of_attempts_is_a_whole_retry(lab: Lab):
    lab.file.write_text(only("retry: 3"))
    assert lab.load().step("a").retry == Retry(attempts=3)


def test_every_reason_to_try_again_can_be_written(lab: Lab):
    lab.file.write_text(only("retry: {attempts: 2, on: [timeout, no_output, lost_connection, out_of_memory, exit]}"))
    assert lab.load().step("a").retry.on == REASONS


@pytest.mark.parametrize(
    ("launcher", "is_read_as"),
    [
        ("threads", Threads()),
        ("torchrun", Torchrun()),
        ("{kind: torchrun, hosts: [gpu1, 'ssh:gpu2'], port: 29401}", Torchrun(("gpu1", "ssh:gpu2"), 29401)),
        ("{kind: slurm, nodes: 2}", Slurm(nodes=2)),
    ],
)
def test_a_training_says_how_its_workers_are_started(lab: Lab, launcher: str, is_read_as: object):
    lab.file.write_text(trained(f"launcher: {launcher}"))
    assert lab.load().step("train").launcher == is_read_as


SPREAD = """\
name: p
steps:
  - {name: target, uses: target}
  - {name: data, uses: data, needs: [target]}
  - {name: prewarm, uses: prewarm, needs: [target, data], with: {for_step: train}}
  - name: train
    uses: train
    needs: [target, data, prewarm]
    launcher: threads
    with:
      topology: {targets: 3, drafters: 2, target_gpus: 2}
"""


def test_workers_that_can_not_be_shared_out_so_are_refused_when_the_file_is_read(lab: Lab):
    def said(launcher: str, *overrides: str) -> str:
        lab.file.write_text(SPREAD.replace("launcher: threads", f"launcher: {launcher}"))
        with pytest.raises(UsageError) as caught:
            load_pipeline(lab.file, load_kinds(), overrides)
        return str(caught.value)

    spread = "a target that is spread over GPUs is one of processes; give the step launcher: torchrun"
    assert said("threads") == f"{lab.file}:11:56: {spread}"
    assert said("null", "train.topology.target_gpus=3") == f"--set train.topology.target_gpus=3: {spread}"
    assert said("{kind: slurm, nodes: 3}").startswith(f"{lab.file}:9:36: 8 workers can not be shared out evenly over 3")
    lab.file.write_text(SPREAD.replace("threads", "{kind: slurm, nodes: 2}"))
    load_pipeline(lab.file, load_kinds())


FINALLY = "finally:\n  - {name: tidy, uses: check, needs: [train], when: failed}\n"


def test_what_is_in_finally_comes_last_and_may_ask_whether_a_step_failed(lab: Lab):
    lab.file.write_text(FINALLY + lab.file.read_text())
    last = lab.load("tidy.min_disk_gib=2").steps[-1]
    assert (last.name, last.is_last, last.when, last.config.min_disk_gib) == ("tidy", True, "failed", 2.0)
    assert not any(step.is_last for step in lab.load().steps[:-1])


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("  - {name: late, uses: check, needs: [tidy]}\n", "7:39", "needs 'tidy', which is in finally:"),
        ("  - {name: tidy, uses: check}\n", "9:12", "the name 'tidy' is already given to a step on line 7"),
    ],
)
def test_nothing_needs_what_is_in_finally(lab: Lab, text: str, place: str, says: str):
    lab.file.write_text(f"name: x\nsteps:\n{TARGET}{TRAIN}{text}{FINALLY}")
    with pytest.raises(ConfigError, match=says) as caught:
        lab.load()
    assert str(caught.value).startswith(f"{lab.file}:{place}: ")


def test_what_is_in_finally_is_given_nothing(lab: Lab):
    lab.file.write_text(lab.file.read_text() + "finally:\n  - {name: e, uses: evaluate, needs: [train]}\n")
    with pytest.raises(ConfigError, match=r"in finally: nothing is sure to be made; move it to steps:"):
        lab.load()
