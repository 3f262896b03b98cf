"""A worker that waits for another is idle, and the one that keeps it waiting is busy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash.model.target import Capture
from dflash.training.communicator import Aborted
from dflash.training.config import Topology
from dflash.training.meter import Meter
from dflash.training.regions import Drafting
from dflash.training.usage import USAGE, busy_by_role, workers_in
from tests.training.logged import read_metrics
from tests.training.small import train

CPU = torch.device("cpu")
SLOW_S = 0.08


def slowed(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
    """Let each call of a method take longer than all else together."""
    method = getattr(kind, name)

    def slow(self: Any, *words: Any) -> Any:
        time.sleep(SLOW_S)
        return method(self, *words)

    monkeypatch.setattr(kind, name, slow)


@pytest.mark.parametrize(
    ("kind", "name", "busy", "idle"),
    [(Capture, "features", "target", "drafter"), (Drafting, "__call__", "drafter", "target")],
)
def test_who_is_waited_for_is_busy_and_who_waits_is_not(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, busy: str, idle: str
):
    slowed(monkeypatch, kind, name)
    train(target_folder, tmp_path, topology=Topology(1, 1), steps=16, checkpoint_every=16, evaluate_every=0)
    shares = busy_by_role(workers_in(tmp_path / USAGE))
    assert shares[busy] > 0.8
    assert shares[idle] < 0.6
    assert shares[idle] < shares[busy] - 0.3


def test_a_colocated_worker_computes_what_both_do(target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slowed(monkeypatch, Capture, "features")
    train(target_folder, tmp_path, topology=Topology(0, 1), steps=6, evaluate_every=0)
    (row, *_) = read_metrics(tmp_path / USAGE / "0.jsonl")
    assert row["role"] == "target and drafter"
    assert SLOW_S < row["busy_s"] <= row["step_s"]


def test_a_step_has_the_time_since_the_one_before_and_what_of_it_was_computing():
    meter, rows = Meter(CPU), []
    with meter.telling("target", rows.append):
        for number in (1, 2):
            time.sleep(0.02)
            with meter.computing():
                time.sleep(0.01 * number)
            meter.step(number)
    assert [(row["step"], row["role"]) for row in rows] == [(1, "target"), (2, "target")]
    for number, row in enumerate(rows, 1):
        assert row.keys() == {"step", "role", "busy_s", "step_s"}
        assert 0.01 * number <= row["busy_s"] <= row["step_s"] - 0.02


def test_what_is_done_before_and_after_is_not_measured():
    meter, rows = Meter(CPU), []
    with meter.computing():
        time.sleep(0.03)
    meter.step(1)
    with meter.telling("drafter", rows.append):
        meter.step(1)
    meter.step(2)
    assert [(row["step"], row["busy_s"]) for row in rows] == [(1, 0)]


class Device:
    """A GPU's events without a GPU: each is over once the device has come so far."""

    def __init__(self) -> None:
        self.asked = self.done = 0
        self.waited = False

    def event(self, *, enable_timing: bool) -> Device.Event:
        assert enable_timing
        return Device.Event(self)

    class Event:
        def __init__(self, device: Device) -> None:
            self.device, self.place = device, 0

        def record(self) -> None:
            self.device.asked += 1
            self.place = self.device.asked

        def query(self) -> bool:
            return self.place <= self.device.done

        def synchronize(self) -> None:
            self.device.waited |= not self.query()
            self.device.done = max(self.device.done, self.place)

        def elapsed_time(self, other: Device.Event) -> float:
            assert other.query()
            return 1000.0 * (other.place - self.place)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    stats = {torch.device("cuda", 3): {"allocated_bytes": {"all": {"peak": 1_504_000_000}}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats.__getitem__)
    return device


def test_a_gpu_is_read_when_it_has_come_so_far_and_waited_for_at_the_end_alone(gpu: Device):
    meter, rows = Meter(torch.device("cuda", 3)), []
    with meter.telling("drafter", rows.append):
        for number in (1, 2, 3):
            with meter.computing():
                pass
            meter.step(number)
            assert not gpu.waited
            assert [row["step"] for row in rows] == ([1] if number == 3 else [])
            gpu.done = 4 if number == 2 else gpu.done
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0] == {"step": 1, "role": "drafter", "busy_s": 1.0, "step_s": 3.0, "gpu_gb": 1.5}


def test_of_a_gpu_that_another_worker_has_left_nothing_is_waited_for(gpu: Device):
    meter, rows = Meter(torch.device("cuda", 3)), []

    def fail() -> None:
        meter.step(1)
        gpu.done = gpu.asked
        meter.step(2)
        meter.step(3)
        gpu.done = gpu.asked - 1
        raise Aborted("the training was stopped")

    with pytest.raises(Aborted), meter.telling("target", rows.append):
        fail()
    assert [row["step"] for row in rows] == [1, 2]
    assert not gpu.waited


def test_measuring_costs_a_step_next_to_nothing():
    meter, rows = Meter(CPU), []
    begun = time.perf_counter()
    with meter.telling("drafter", rows.append):
        for number in range(2000):
            for _ in range(3):
                with meter.computing():
                    pass
            meter.step(number)
    assert (time.perf_counter() - begun) / 2000 < 200e-6
