"""The screens of all commands as they were reviewed, and what they suggest next.

After a change that is meant, write them again with `DAYDREAM_GOLDEN=write pytest tests/cli`
and read the difference.
"""

import shlex
import shutil
from itertools import product

import pytest
from command_line import held_to
from graph.small_traces import rows, trace, with_steps
from machine.programs import PROGRAMS, queue_full
from shared import EXAMPLES, shared_trace

# What people see: the text of each command on the machine's trace, as files to read


COMMANDS = {
    "import": "import step.json.gz -o new.parquet",
    "info": "info step.parquet",
    "replay": "replay --trace step.parquet",
    "explain": "explain --trace step.parquet",
    "whatif_scale": "whatif scale --on gpu --factor 0.5 --trace step.parquet",
    "rank": "rank --trace step.parquet",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_screen_is_as_reviewed(ask, name):
    done = ask(*shlex.split(COMMANDS[name])).good()

    held_to(f"{name}.txt", f"$ daydream {COMMANDS[name]}\n{done.out}")


# `daydream compare` as typed: the screens as reviewed, the JSON object, errors in one line


@pytest.fixture
def pair(folder):
    """A folder in which `faster.json.gz` is the same program on a GPU that is twice as fast."""
    PROGRAMS["synchronizing"]().run(steps=30, gpu=0.5).write(folder / "faster.json.gz", 24, 27)
    return folder


@pytest.fixture
def many(pair):
    """The same with `nightly/`, whose GPU is slower from run 3 on, and `job/`, where that of rank 1 is."""
    for name, gpus in (("nightly/run-{}.json", (0.5, 0.51, 0.5, 1.0, 1.01)), ("job/rank{}.json", (0.5, 1.0))):
        for number, gpu in enumerate(gpus):
            file = pair / name.format(number)
            file.parent.mkdir(exist_ok=True)
            PROGRAMS["synchronizing"]().run(steps=30, gpu=gpu).write(file, 24, 27)
    return pair


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("compare", "compare step.json.gz faster.json.gz"),
        ("series", "compare nightly"),
        ("blame", "blame job"),
    ],
)
def test_the_screen_is_as_reviewed_of_compare(many, ask, name, typed):
    done = ask(*typed.split())

    assert done.code == 0, done.err
    held_to(f"{name}.txt", f"$ daydream {typed}\n{done.out}")


def test_of_two_traces_an_error_says_which(folder, ask):
    queue_full().run(steps=6).write(folder / "one.json", 3, 3)  # its kernels began before it
    done = ask("compare step.parquet one.json")

    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("error: one.json: no step of this trace can be judged")


# `daydream explain` as typed: the text, the JSON object, a change explained, errors in one line


# The last line of a command is what to type next, and it works: on GPU, CPU and several ranks


NEXT = "next: daydream "
LONGEST = 4  # a chain of commands ends at a file that was written


def two_ranks_of_gloo():
    #  thread of a rank  |forward 40|backward 30|      wait      |step 10|   a step of 100
    #  pool                                     |gloo:all_reduce |
    reduced = "collective=all_reduce bytes=4096"
    step = f"""
        op aten::mm 0 40 phase=forward op=aten::mm
        op c10d::allreduce_ 40 45 {reduced}
        op MmBackward0 45 70 phase=backward op=MmBackward0
        note gloo:all_reduce 48 88 tid=8 {reduced}
        op aten::add_ 90 100 phase=optimizer op=aten::add_
    """
    made = trace(*(rows(step, times=4, every=100, rank=rank) for rank in (0, 1)))
    return with_steps(made, dict.fromkeys((0, 1), range(0, 500, 100)))


@pytest.fixture
def traces(folder):
    """The folder with traces of other machines beside those of every test."""
    shutil.copy(EXAMPLES / "mlp_cpu.json.gz", folder / "cpu.json.gz")
    shutil.copy(EXAMPLES / "synthetic_gpt_gpu.json.gz", folder / "gpt.json.gz")
    two_ranks_of_gloo().save(folder / "gloo.parquet")
    return folder


def followed(ask, words):
    """Run a command and what it suggests, and so on; return the commands that ran."""
    ran = []
    while words and len(ran) < LONGEST:
        done = ask(*words)
        ran.append(shlex.join(words))
        assert done.code == 0, (ran, done.err)
        last = done.err.splitlines()[-1] if done.err else ""
        words = shlex.split(last.removeprefix(NEXT)) if last.startswith(NEXT) else []
    return ran


SOURCES = "step.parquet", "ranks", "cpu.json.gz", "gpt.json.gz", "gloo.parquet"
ASKED = "info", "replay --trace", "rank --pairs 0 --no-curves --trace"


@pytest.mark.parametrize(
    "command", [*COMMANDS.values(), *(f"{asked} {source}" for asked, source in product(ASKED, SOURCES))]
)
@pytest.mark.usefixtures("traces")
def test_what_is_suggested_works(ask, command):
    assert len(followed(ask, command.split())) > 1


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("cases/cpu_moe_data_dependent_ops", ["explain", "rank", "whatif scale"]),  # none goes in a circle
        ("cases/gh200_transformer_layer_annotations", ["memory", "whatif batch-size"]),
    ],
)
def test_what_is_suggested_leads_on(ask, name, commands):
    ran = followed(ask, [commands[0], "--trace", str(shared_trace(f"{name}.json.gz"))])
    assert [line[: len(start)] for line, start in zip(ran, commands, strict=False)] == commands


def test_no_change_of_a_step_is_suggested_where_none_can_be_judged(ask):
    name = str(shared_trace("cases/cuda_memory_events_without_device_rows.json.gz"))
    done = ask("memory --largest-batch --capacity 24GB --trace", name)
    assert (done.code, NEXT in done.err) == (0, False)
    assert "largest batch that fits 24 GB" in done.out
