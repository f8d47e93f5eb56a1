"""Training scripts of every shape, collected and then left as they would have been."""

from __future__ import annotations

import json
import re
import signal
import textwrap

import pytest

pytest.importorskip("torch", reason="collects real training scripts")

FAILED, ENOUGH = 1, 40  # steps that cover warm-up, timing and capture


def test_a_plain_script_gives_a_trace_and_says_what_to_do_next(folder):
    folder.script(
        f"""
        for _ in range({ENOUGH}):
            step()
        assert torch.__spec__.loader.get_source("torch")  # the loader is torch's own
        assert HAS_OWN_SITECUSTOMIZE
        print("trained")
        """
    )
    done = folder.collect("--steps", "2", "train.py")
    *stages, wrote, following = done.err.splitlines()

    assert (done.code, done.out) == (0, "trained\n")
    assert done.steps() == 2
    assert done.hidden() == []
    stages = [line.removeprefix("daydream: ") for line in stages]
    assert stages[0].startswith("waiting for")
    assert sum(stage.startswith("capturing") for stage in stages) >= 2
    assert "captured, wrote train.parquet" in stages
    assert wrote.startswith("wrote train.parquet (")
    assert following == "next: daydream info train.parquet"


def test_a_module_is_run_with_its_arguments(folder):
    folder.script("", "pack/__init__.py", begin="")
    folder.script("COUNT = 40", "pack/size.py", begin="")
    folder.script(
        """
        import sys
        from .size import COUNT
        for _ in range(COUNT):
            step()
        print(__name__, sys.argv[1:])
        """,
        "pack/train.py",
    )
    done = folder.collect("--json", "-m", "pack.train", "--steps", "9")

    assert done.code == 0
    assert json.loads(done.out)["trace"] == "train.parquet"
    assert json.loads(done.out)["ranks"] == [0]
    assert "__main__ ['--steps', '9']" in done.err


LOOPS = {
    "accumulation": """
        for index in range(4 * 40):
            model(torch.randn(2, 4)).sum().backward()
            if index % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        """,
    "two optimizers at different rates": """
        other = torch.nn.Linear(4, 4)
        seldom = torch.optim.Adam(other.parameters())
        for index in range(3 * 40):
            step()
            if index % 3 == 2:
                other(torch.randn(2, 4)).sum().backward()
                seldom.step()
        """,
    "a closure": """
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        data = torch.randn(2, 4)
        def closure():
            optimizer.zero_grad()
            loss = model(data).square().sum()
            loss.backward()
            return loss
        for _ in range(40):
            optimizer.step(closure)
        """,
    "no optimizer": """
        for _ in range(40):
            model(torch.randn(2, 4)).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        """,
}


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_are_found_in(loop, folder):
    folder.script(textwrap.dedent(LOOPS[loop]) + "print('trained')")
    done = folder.collect("train.py")

    assert (done.code, done.out) == (0, "trained\n")
    assert done.steps() >= 2


@pytest.mark.parametrize("loop", ["no optimizer", "accumulation"])
def test_stop_after_ends_the_script_when_the_steps_are_captured(loop, folder):
    folder.script(LOOPS[loop].replace("40", "1_000_000_000"))
    done = folder.collect("--stop-after", "train.py")

    assert done.code == 0
    assert done.steps() == 3


def test_a_script_that_ends_early_is_told_how_far_it_came(folder):
    folder.script("step(); step()")
    done = folder.collect("train.py")

    assert done.code == FAILED
    assert re.search(r"^error: .*only 2 .*steps", done.err, re.MULTILINE)
    assert [path.name for path in folder.path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise ValueError('bad data')", 1, "in <module>\n    raise ValueError('bad data')"),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9, ""),
    ],
)
def test_a_captured_trace_survives_how_the_script_ends(end, code, said, folder):
    folder.script(f"for _ in range({ENOUGH}):\n    step()\n{end}", "run.py")
    done = folder.collect("-o", "t.parquet", "run.py")

    assert done.code == code
    assert said in done.err
    assert done.steps("t.parquet") == 3
    assert done.err.splitlines()[-1] == "next: daydream info t.parquet"


def test_an_exception_in_the_middle_leaves_what_was_captured(folder):
    folder.script(f"for _ in range({ENOUGH}):\n    step()\nraise ValueError('bad data')")
    done = folder.collect("--steps", "1000", "train.py")

    assert done.code == 1
    assert "Traceback (most recent call last):" in done.err
    assert done.steps() >= 2


def test_a_process_that_is_killed_in_the_middle_is_said_to_have_saved_nothing(folder):
    folder.script(f"import os\nfor _ in range({ENOUGH}):\n    step()\nos._exit(0)")
    done = folder.collect("--steps", "1000", "train.py")

    assert done.code == FAILED
    assert "ended without saving" in done.err
    assert [path.name for path in folder.path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "KeyboardInterrupt"), (signal.SIGTERM, 128 + signal.SIGTERM, "")],
)
def test_a_signal_ends_the_script_as_always_and_keeps_what_was_captured(number, code, said, folder):
    folder.script(
        f"""
        for _ in range({ENOUGH}):
            step()
        open("training", "w")
        while True:
            step()
        """
    )
    done = folder.interrupt(number, "--steps", "1000000", "train.py")

    assert done.code == code
    assert said in done.err
    assert done.err.count("Traceback") == bool(said)
    assert done.steps() >= 2


def test_a_script_that_handles_signals_goes_on_doing_so(folder):
    folder.script(
        f"""
        import signal, sys
        def leave(*_):
            print("saved a checkpoint")
            sys.exit(5)
        signal.signal(signal.SIGTERM, leave)
        for _ in range({ENOUGH}):
            step()
        open("training", "w")
        while True:
            step()
        """
    )
    done = folder.interrupt(signal.SIGTERM, "train.py")

    assert (done.code, done.out) == (5, "saved a checkpoint\n")
    assert done.steps() == 3


def workers(start):
    return f"""
        from torch.utils.data import DataLoader, TensorDataset
        class Data(TensorDataset):
            def __getitem__(self, index):
                torch.nn.Linear(1, 1)(torch.ones(1)).backward()
                return super().__getitem__(index)
        if __name__ == "__main__":
            loader = DataLoader(Data(torch.randn(2 * {ENOUGH}, 4)), batch_size=2, num_workers=2,
                                multiprocessing_context="{start}")
            for (rows,) in loader:
                step()
            print(len(loader), "batches")
        """


@pytest.mark.parametrize(
    "start",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.slow),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_data_loader_workers_are_left_alone(start, folder):
    folder.script(workers(start))
    done = folder.collect("train.py")

    assert (done.code, done.out) == (0, f"{ENOUGH} batches\n")
    assert done.steps() == 3
    assert "note:" not in done.err


def test_a_script_that_profiles_itself_loses_neither_trace_silently(folder):
    folder.script(
        f"""
        from torch.profiler import profile
        with profile() as own:
            for _ in range({ENOUGH}):
                step()
        print("own events:", len(own.events()) > 0)
        """
    )
    done = folder.collect("train.py")
    own_lost = "own events: True" not in done.out
    ours_lost = not (folder.path / "train.parquet").exists()

    assert not own_lost or "profil" in done.err
    assert ours_lost == (done.code != 0)


def test_a_full_disk_leaves_no_half_file_and_is_told(folder):
    folder.script(
        f"""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        for _ in range({ENOUGH}):
            step()
        print("trained")
        """
    )
    done = folder.collect("train.py")

    assert (done.code, done.out) == (FAILED, "trained\n")
    assert "cannot write" in done.err
    assert [path.name for path in folder.path.iterdir()] == ["train.py"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(folder):
    folder.script(
        f"""
        open("train.parquet", "w").write("the script's own")
        for _ in range({ENOUGH}):
            step()
        """
    )
    done = folder.collect("train.py")

    assert (folder.path / "train.parquet").read_text() == "the script's own"
    assert done.steps("train-2.parquet") == 3
    assert "the trace is in train-2.parquet" in done.err


def test_torch_that_fails_to_import_fails_as_always(folder):
    folder.script("raise ImportError('no torch here')", "torch/__init__.py", begin="")
    folder.script("import torch", begin="")
    done = folder.collect("train.py")

    assert done.code == 1
    assert "no torch here" in done.err
    assert "daydream could not start" not in done.err
