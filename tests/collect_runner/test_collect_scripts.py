"""Training scripts of every shape, collected and then left as they would have been."""

import json
import re
import signal

import pytest

pytest.importorskip("torch", reason="collects real training scripts")

FAILED, ENOUGH = 1, 40  # steps that cover warm-up, timing and capture


def slow(*values):
    """Each of these takes 3 to 4 s, nearly all of it the import of torch."""
    return pytest.param(*values, marks=pytest.mark.slow)


def test_a_plain_script_gives_a_trace_and_says_what_to_do_next(folder):
    folder.script(
        f"""
        for _ in range({ENOUGH}):
            step()
        assert torch.__spec__.loader.get_source("torch")  # the loader is torch's own
        assert HAS_OWN_SITECUSTOMIZE
        import os
        assert "KINETO_LOG_LEVEL" not in os.environ
        print("trained")
        """
    )
    done = folder.collect("--steps", "2", "train.py", suggestions=True)
    *stages, following = done.err.splitlines()
    at = next(at for at, line in enumerate(stages) if line.startswith("wrote "))
    stages, (wrote, *suggested) = stages[:at], stages[at:]

    assert (done.code, done.out) == (0, "trained\n")
    assert done.steps() == 2
    assert done.hidden() == []
    stages = [line.removeprefix("daydream: ") for line in stages]
    assert stages[0].startswith("waiting for")
    assert "capturing: step 2 of 2" in stages
    assert not any("of 3" in stage for stage in stages)
    assert "captured, wrote train.parquet" in stages
    assert "USDT" not in done.err  # the profiler's own lines
    assert wrote.startswith("wrote train.parquet (")
    assert re.match("top suggestions|no code change|no suggestions", suggested[0])
    assert following == "next: daydream info train.parquet"


@pytest.mark.slow
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


def test_a_script_that_ends_early_is_told_how_far_it_came(folder):
    folder.script("step(); step()")
    done = folder.collect("train.py")

    assert done.code == FAILED
    assert re.search(r"^error: .*only 2 .*steps", done.err, re.MULTILINE)
    assert [path.name for path in folder.path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        slow("import sys; sys.exit(3)", 3),
        slow("import os; os.kill(os.getpid(), 9)", 128 + 9),
    ],
)
def test_a_captured_trace_survives_how_the_script_ends(end, code, folder):
    folder.script(f"for _ in range({ENOUGH}):\n    step()\n{end}", "run.py")
    done = folder.collect("-o", "t.parquet", "run.py")

    assert done.code == code
    assert done.steps("t.parquet") == 3
    assert done.err.splitlines()[-1] == "next: daydream info t.parquet"


@pytest.mark.slow
def test_an_exception_in_the_middle_leaves_what_was_captured(folder):
    folder.script(f"for _ in range({ENOUGH}):\n    step()\nraise ValueError('bad data')")
    done = folder.collect("--steps", "1000", "train.py")

    assert done.code == 1
    assert "Traceback (most recent call last):" in done.err
    assert done.steps() >= 2


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "KeyboardInterrupt"),
        slow(signal.SIGTERM, 128 + signal.SIGTERM, ""),
    ],
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


def test_ctrl_c_more_than_once_while_the_trace_is_written_ends_the_script_as_always(folder):
    folder.script(
        """
        import os, signal, threading, time
        def interrupt():
            while True:  # as a terminal and a launcher do, and more than once
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.02)
        for _ in range(5 + 4 + 20):  # warm up, capture, time
            step()
        threading.Thread(target=interrupt, daemon=True).start()
        while True:
            step()
        """
    )
    done = folder.collect("train.py", apart=True)

    assert done.code == 130
    assert "KeyboardInterrupt" in done.err
    assert "terminate called" not in done.err
    assert done.steps() == 3
    assert len(done.trace().metadata["unprofiled_step_ns"]) >= 14  # busy machines capture once more


@pytest.mark.slow
def test_ctrl_c_before_the_first_captured_step_does_not_blame_the_script(folder):
    folder.script("step(); step()\nimport os, signal\nos.kill(os.getpid(), signal.SIGINT)\nstep()")
    done = folder.collect("train.py")

    assert done.code == 130
    last = done.err.splitlines()[-1]
    assert last.startswith("error: interrupted before a step was captured")
    assert "2 training steps had run" in last
    assert [path.name for path in folder.path.iterdir()] == ["train.py"]


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
        slow("spawn"),
    ],
)
def test_data_loader_workers_are_left_alone(start, folder):
    folder.script(workers(start))
    done = folder.collect("train.py")

    assert (done.code, done.out) == (0, f"{ENOUGH} batches\n")
    assert done.steps() == 3
    assert done.notes() == []


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
    done = folder.collect("train.py", apart=True)

    assert (done.code, done.out) == (FAILED, "trained\n")
    assert "cannot write" in done.err
    assert [path.name for path in folder.path.iterdir()] == ["train.py"]


@pytest.mark.slow
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


@pytest.mark.slow
def test_stacks_say_which_function_of_the_script_called_what(folder):
    folder.script(
        """
        def log(value):
            return value.item()

        def iteration():
            step()
            log(model(torch.randn(2, 4)).sum())

        for _ in range(40):
            iteration()
        """
    )
    done = folder.collect("--with-stack", "train.py")

    assert done.code == 0, done.err
    trace = done.trace()
    callers = dict.fromkeys(zip(trace.values("name"), trace.values("stack"), strict=True))
    where = {str(line).partition(": ")[2] for name, line in callers if name == "aten::_local_scalar_dense"}
    assert where == {"log"}
    assert {line for name, line in callers if name == "aten::addmm"} <= {
        line for _, line in callers if line and line.startswith("train.py(")
    }
    assert all(text.startswith("train.py(") for text in trace.text("stack"))
    assert any("frames were recorded" in note for note in trace.metadata["notes"])
    assert not [name for name in trace.text("name") if "built-in" in name or ".py(" in name]
