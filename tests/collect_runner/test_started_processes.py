"""Ranks and workers that a script starts are reached; its helpers see the environment as it is without us."""

from __future__ import annotations

import importlib.util
import json
import os
import sys

import pytest

from daydream.collect.live.child import INJECT, environment_of, is_launcher
from daydream.collect.live.messages import VARIABLE

FOLDER = "/tmp/daydream-collect.x"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="collects a script")


def environment(args, **variables):
    pairs = [f"{name}={value}".encode() for name, value in variables.items()]
    found = environment_of(args, pairs, FOLDER)
    return dict(pair.decode().partition("=")[::2] for pair in found)


@pytest.mark.parametrize(
    ("args", "variables", "reached"),
    [
        (["git", "status"], {}, False),
        ([sys.executable, "tool.py"], {"HOME": "/"}, False),
        ([sys.executable, "train.py"], {"LOCAL_RANK": "1"}, True),
        ([sys.executable, "train.py"], {"RANK": "3"}, True),
        (["tool"], {"RANK": "7"}, False),  # as this process: a rank's helper
        ([sys.executable, "-c", "from multiprocessing.spawn import ...", "--multiprocessing-fork"], {}, True),
        ([sys.executable, "-c", "from multiprocessing.forkserver import main; main()"], {}, True),
        ([sys.executable, "-c", "from multiprocessing.resource_tracker import main;main(7)"], {}, False),
    ],
)
@pytest.mark.parametrize("copied", [False, True])
def test_only_ranks_and_workers_are_given_what_reaches_into_a_process(
    args, variables, reached, copied, monkeypatch
):
    monkeypatch.setenv("RANK", "7")
    if copied:  # from the environment, before it was put in order
        variables = {**variables, VARIABLE: FOLDER, "PYTHONPATH": f"{INJECT}{os.pathsep}/mine"}
    else:
        variables = {**variables, "PYTHONPATH": "/mine"}
    found = environment(args, **variables)

    assert (VARIABLE in found) == reached
    assert found["PYTHONPATH"].split(os.pathsep) == [*([str(INJECT)] if reached else []), "/mine"]


def test_where_there_was_no_path_there_is_none():
    assert environment(["git"], PYTHONPATH=str(INJECT)) == {}
    assert environment(["python"], LOCAL_RANK="0")["PYTHONPATH"] == str(INJECT)


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


@needs_torch
def test_a_script_and_its_helpers_see_the_environment_as_it_is_without_us(folder):
    folder.script(
        """
        import json, os, subprocess, sys
        early = dict(os.environ)
        import torch
        seen = "import json, os; print(json.dumps(dict(os.environ)))"
        said = [subprocess.check_output([sys.executable, "-c", seen], env=env) for env in (None, early)]
        said.append(os.popen(f"{sys.executable} -c '{seen}'").read())
        with open(sys.argv[-1], "w") as file:
            json.dump([dict(os.environ), *map(json.loads, said)], file)
        """,
        begin="",
    )
    folder.python("train.py", "plain.json")
    folder.collect("train.py", "collected.json")
    plain, collected = (
        json.loads((folder.path / f"{name}.json").read_text()) for name in ("plain", "collected")
    )

    assert collected == plain


@needs_torch
def test_a_helper_that_trains_is_not_recorded(folder):
    folder.script("for _ in range(40):\n    step()\n", "other.py")
    folder.script(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, 'other.py'], check=True)\n"
        "step()\n"
    )  # fmt: skip
    done = folder.collect("train.py")

    assert done.code == 1
    assert "only 1 training step ran" in done.err


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
