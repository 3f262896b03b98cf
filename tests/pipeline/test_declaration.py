"""What a step may declare, and where each mistake is."""

from __future__ import annotations

import pytest

from dflash.errors import ConfigError
from dflash.pipeline.policy import REASONS, Limits, Retry
from tests.pipeline.lab import Lab


def only(keys: str) -> str:
    """A pipeline of one step that declares these keys."""
    return f"name: x\nsteps:\n  - {{name: a, uses: target, {keys}}}\n"


@pytest.mark.parametrize(
    ("keys", "place", "says"),
    [
        ("timeout: 20 min", "3:38", "'20 min' is no duration: write 90s, 20m, 4h, 2d or a number of seconds above 0"),
        ("timeout: true", "3:38", "True is no duration"),
        ("no_output_timeout: -5", "3:48", "-5 is no duration"),
        ("timout: 5s", "3:29", "unknown key 'timout'; did you mean 'timeout'?"),
        ("retry: 0", "3:36", "must be greater than or equal to 1, not 0; write 1 or more"),
        ("retry: many", "3:36", 'must be a map, not "many"; its keys are attempts, on, '),
        ("retry: {backoff: 1s}", "3:36", "the key 'attempts' is missing; add attempts:"),
        ("retry: {attempts: 2, jitter: 2}", "3:58", "must be less than or equal to 1, not 2; write 1 or less"),
        ("retry: {attempts: 2, max_backof: 2s}", "3:50", "did you mean 'max_backoff'?"),
        ("retry: {attempts: 2, on: []}", "3:54", "should have at least 1 item, and has none; give it one"),
        ("retry: {attempts: 2, on: [time out]}", "3:55", "did you mean 'timeout'?"),
        ("retry: {attempts: 2, on: [lost connection]}", "3:55", "did you mean 'lost_connection'?"),
        ("retry: {attempts: 2, on: [timeout, 256]}", "3:64", "256 is no reason and no exit status from 1 to 255"),
        ("inputs: ['']", "3:38", 'should have at least 1 character, not ""; write one, or remove it'),
        ("inputs: corpus", "3:37", 'must be a list, not "corpus"; put it in brackets: [corpus]'),
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
        ("host: gpu1, inputs: [a, /b]", "3:41", "an absolute path of this machine is not one of the step's host"),
        ("launcher: torchrun", "3:29", "a step of kind 'target' has no workers to start"),
        ("when: 3", "3:35", 'must be a valid string, not 3; put it in quotes: "3"'),
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
