"""Ranks and workers that a script starts are reached; its helpers see the environment as it is without us."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from daydream.collect.launcher import runner
from daydream.collect.launcher.runner import OWNER, VARIABLE, LongSteps
from daydream.collect.live import recorder
from daydream.collect.live.child import is_launcher
from daydream.collect.live.recorder import held_interruptions

INJECT = runner.INJECT
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="collects a script")


@pytest.fixture
def inject(monkeypatch):
    """Return what runs at the start of each process, loaded in one that is none of a run."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("inject", INJECT / "sitecustomize.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("args", "variables", "helps"),
    [
        (["tool.py"], {}, True),
        (["train.py"], {"LOCAL_RANK": "1"}, False),
        (["train.py"], {"RANK": "3"}, False),
        (["tool.py"], {"RANK": "7"}, True),  # as the process that started it: a rank's helper
        (["-c", "from multiprocessing.spawn import ...", "--multiprocessing-fork"], {}, False),
        (["-c", "from multiprocessing.forkserver import main; main()"], {}, False),
        (["-c", "from multiprocessing.resource_tracker import main;main(7)"], {}, True),
    ],
)
def test_only_ranks_and_workers_are_recorded(args, variables, helps, inject, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *args])
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not inject._is_helper()  # nothing that trains started it
    monkeypatch.setenv(OWNER, "1,7,")
    assert inject._is_helper() == helps
    monkeypatch.setenv(OWNER, f"{os.getpid()},7,")  # it started itself anew
    assert not inject._is_helper()


def test_a_helper_finds_the_environment_as_it_is_without_us(inject, monkeypatch):
    for path, left in ((str(INJECT), None), (f"{INJECT}{os.pathsep}/mine", "/mine")):
        for name, value in ((VARIABLE, "/tmp/x"), (OWNER, "1,,"), ("PYTHONPATH", path)):
            monkeypatch.setenv(name, value)
        inject._leave()
        assert [os.environ.get(name) for name in (VARIABLE, OWNER, "PYTHONPATH")] == [None, None, left]


@pytest.mark.parametrize(
    ("command", "launches"),
    [
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", True),
        ("python -W error /usr/bin/torchrun train.py", True),
        ("python -u /usr/bin/accelerate launch train.py", True),
        ("python train.py --launcher torchrun", False),
        ("python -m package.train torchrun", False),
        ("python -c pass torchrun", False),
        ("python", False),
    ],
)
def test_launchers_are_known_by_what_is_run(command, launches):
    assert is_launcher(command.split()) == launches


@pytest.mark.slow
@needs_torch
def test_a_script_that_starts_itself_anew_is_recorded(folder):
    folder.script(
        """
        import os, sys
        if "ANEW" not in os.environ:
            os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "ANEW": "1"})
        for _ in range(40):
            step()
        """
    )
    done = folder.collect("train.py")

    assert done.code == 0, done.err
    assert done.steps() == 3


# -- ctrl-c waits until what we do in the script's process is done, and then means wh --------------------


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def test_it_comes_behind_the_work():
    done = []

    def work():
        with held_interruptions():
            ctrl_c()
            done.append("work")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["work"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_same_one_passed_on_is_one_and_a_later_one_does_not_wait(monkeypatch):
    done = []

    def work():
        with held_interruptions():
            ctrl_c()
            ctrl_c()
            done.append("twice")
            monkeypatch.setattr(recorder, "AGAIN_S", -1.0)
            ctrl_c()
            done.append("again")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["twice"]


def test_a_script_that_ignores_it_goes_on_doing_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_interruptions():
            ctrl_c()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone():
    seen = []

    def work():
        with held_interruptions():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [signal.default_int_handler]


def test_what_failed_meanwhile_is_not_lost():
    def work():
        with held_interruptions():
            ctrl_c()
            raise ValueError("no space")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)


class Watched:
    """What is said as the time passes."""

    def __init__(self):
        self.now, self.said = 0.0, []
        self.steps = LongSteps(self.said.append, clock=lambda: self.now)

    def after(self, seconds):
        for _ in range(seconds):
            self.now += 1
            self.steps.look()
        said, self.said[:] = list(self.said), []
        return said


def test_it_is_said_after_ten_seconds_and_then_ever_more_seldom():
    watched = Watched()
    watched.steps.heard("warming up: step 2 of 5")

    assert watched.after(9) == []
    assert watched.after(80) == [f"step 3 has taken {seconds} s" for seconds in (10, 20, 40, 80)]


def test_before_the_first_step_only_compiling_tells_that_it_runs():
    watched = Watched()
    watched.steps.heard("waiting for training steps")
    assert watched.after(15) == ["no training step yet after 10 s"]

    watched.steps.compiles(True)
    assert watched.after(45) == [f"compiling: step 1 has taken {seconds} s" for seconds in (10, 20, 40)]
    watched.steps.compiles(False)
    assert watched.after(40) == ["step 1 has taken 80 s"]


@pytest.mark.slow
def test_torch_itself_says_when_it_compiles(folder):
    pytest.importorskip("torch", reason="compiles with torch")
    folder.script(
        """
        import sys
        from daydream.collect.live.torch_compiler import watch_compiler
        told = []
        before = len(sys.meta_path)
        watch_compiler(told.append)
        import torch
        assert told == []
        function = torch.compile(lambda x: x + 1, backend="eager")
        function(torch.ones(2))
        function(torch.ones(2))
        print(told, len(sys.meta_path) - before)
        """,
        begin="",
    )
    done = folder.python("train.py")

    assert done.out == "[True, False] 1\n", done.err  # what waits for Inductor, which it does without


# What can be said before, or without, a single training step


FAILED = 1
USAGE = 2
PLAIN = {"begin": ""}


def test_a_script_without_torch_is_told_so_and_nothing_is_written(folder):
    folder.script("print('done')", **PLAIN)
    done = folder.collect("train.py")

    assert (done.code, done.out) == (FAILED, "done\n")
    assert done.err.splitlines()[-1].startswith("error: the script never imported torch")
    assert sorted(path.name for path in folder.path.iterdir()) == ["train.py"]


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_refused(ask, folder):
    folder.script("open('/dev/null')", **PLAIN)
    locked = folder.path / "locked"
    locked.mkdir(mode=0o500)

    assert "cannot write locked" in ask("-o", "locked/t.parquet", "train.py").err


@pytest.mark.slow
def test_an_isolated_interpreter_is_noticed_by_its_silence(tmp_path):
    command = [sys.executable, "-I", "-c", "raise SystemExit(0)"]
    done = runner.collect(command, tmp_path / "t.parquet", runner.Recording())

    assert done.path is None
    assert "does not read PYTHONPATH" in done.problems[0]


def test_a_script_and_its_helpers_see_what_they_see_without_us(folder):
    folder.script(
        """
        import json, os, pickle, subprocess, sys
        class Thing: pass
        pickle.loads(pickle.dumps(Thing()))
        found = [__name__, __file__, __spec__ is None, sys.argv[:-1], sys.orig_argv[1:-1], os.getcwd(),
                 sys.path, sys.modules["sitecustomize"].__file__, sorted(sys.modules), len(sys.meta_path)]
        said = []
        try:
            import torch
            seen = "import json, os; print(json.dumps(dict(os.environ)))"
            said = [subprocess.check_output([sys.executable, "-c", seen]),
                    os.popen(f"{sys.executable} -c '{seen}'").read()]
        except ImportError:  # nothing will be recorded
            pass
        with open(sys.argv[-1], "w") as file:
            json.dump([*map(json.loads, said), *found], file)
        """,
        **PLAIN,
    )
    rest = ["train.py", "--epochs", "1", "--json", "--", "-o", "x", ""]
    folder.python(*rest, "plain.json")
    done = folder.collect("-o", "t.parquet", *rest, "collected.json")
    plain, collected = (
        json.loads((folder.path / f"{name}.json").read_text()) for name in ("plain", "collected")
    )

    assert done.out == ""
    assert plain.pop() + 1 == collected.pop()  # the one that waits for torch
    assert plain == collected


@pytest.mark.slow
def test_a_process_that_outlives_the_run_is_left_alone(folder):
    environment = folder.environment(
        DAYDREAM_COLLECT=str(folder.path / "over"), PYTHONPATH=str(runner.INJECT)
    )
    code = "import sys; print(len(sys.meta_path), any('AfterImport' in repr(each) for each in sys.meta_path))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )

    assert done.stdout.split()[1] == "False"


def test_a_process_whose_environment_does_not_hold_daydream_finds_it(tmp_path):
    """As where a checkout is not installed: the script's process has the folder of the package told."""
    code = (
        "import sys, sitecustomize, importlib.util\n"
        "assert importlib.util.find_spec('daydream') is None\n"
        "sys.path.append(sitecustomize.PACKAGES)\n"
        "print(importlib.util.find_spec('daydream').origin)"
    )
    environment = {"PYTHONPATH": str(runner.INJECT)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).samefile(Path(runner.__file__).parents[2] / "__init__.py")
