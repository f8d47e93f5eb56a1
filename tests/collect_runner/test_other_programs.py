"""What other programs take of the machine is known before a capture, from the system's own counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daydream.collect.live import other_programs
from daydream.collect.live.other_programs import OtherPrograms, Taken

RUN = 100


class Machine:
    """A made-up /proc of two CPUs, in hundredths of a second."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.now = folder, 0.0
        self.cpus = [0, 0, 5000]
        self.processes = {}
        monkeypatch.setattr(other_programs, "PROC", folder)
        monkeypatch.setattr(other_programs.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
        monkeypatch.setattr(other_programs.os, "sysconf", lambda _: 100)
        monkeypatch.setattr(other_programs.time, "monotonic", lambda: self.now)
        self.process(RUN, 1)
        self.run()

    def process(self, number, parent, name="python", ended=0):
        self.processes[number] = [parent, name, 0, ended]

    def run(self, seconds=0.0, **worked):
        """Let processes work for so many seconds each, as `p100=1.5`; `cpu2` is not one of ours."""
        for key, value in worked.items():
            number, ticks = int(key[1:]), round(100 * value)
            self.processes[number][2] += ticks
            self.cpus[number % 2] += ticks
        self.now += seconds
        lines = [
            f"cpu{number} {ticks // 2} 0 {ticks - ticks // 2} 9999 5 0 0 0 0 0"
            for number, ticks in enumerate(self.cpus)
        ]
        (self.folder / "stat").write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "btime 5"]))
        for number, (parent, name, ticks, ended) in self.processes.items():
            (self.folder / str(number)).mkdir(exist_ok=True)
            text = f"{number} ({name}) S {parent} 1 1 0 -1 4194304 1 2 3 4 {ticks} 0 {ended} 0 20 0 1 0"
            (self.folder / str(number) / "stat").write_text(text)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_what_is_not_this_runs_is_others(machine):
    machine.process(101, RUN, name="a) (b")
    machine.process(102, 101)
    machine.process(200, 1)
    machine.run()
    others = OtherPrograms(RUN)
    others.look()
    machine.run(2.0, p100=0.1, p101=1.0, p102=0.5, p200=1.4)

    assert others.taken() == Taken(0.7, 2)
    assert others.taken().much
    assert str(others.taken()) == "other programs take 0.7 of 2 CPUs"


def test_a_run_alone_is_at_rest(machine):
    others = OtherPrograms(RUN)
    others.look()
    machine.run(1.0, p100=1.9)

    assert others.taken() == Taken(0.0, 2)
    assert not others.taken().much


def test_children_that_have_ended_are_ours(machine):
    machine.process(101, RUN)
    machine.run(p101=1.0)
    others = OtherPrograms(RUN)
    others.look()
    machine.run(1.0, p101=0.5)
    machine.processes[RUN][3] = machine.processes.pop(101)[2]
    for path in (machine.folder / "101").iterdir():
        path.unlink()
    machine.run(1.0)

    assert others.taken() == Taken(0.0, 2)


def test_a_span_is_long_enough_to_count(machine):
    machine.process(200, 1)
    others = OtherPrograms(RUN)
    others.look()
    machine.run(0.2, p200=0.2)
    assert others.taken() is None

    others.look()
    machine.run(0.2)
    assert others.taken().cpus == pytest.approx(0.5)  # since the first


def test_where_the_system_does_not_tell_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(other_programs, "PROC", tmp_path / "nowhere")
    others = OtherPrograms(RUN)
    others.look()

    assert others.taken() is None


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
def test_this_machine_can_be_asked(monkeypatch):
    monkeypatch.setattr(other_programs, "LEAST_S", 0.0)
    others = OtherPrograms(os.getpid())
    others.look()
    taken = others.taken()

    assert taken is not None
    assert taken.of == len(os.sched_getaffinity(0))
