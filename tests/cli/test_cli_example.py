"""`daydream example`: what comes with daydream is written where one is."""

from pathlib import Path

import pytest

from daydream.cli.collect import EXAMPLES

SOURCE = Path(__file__).resolve().parents[2] / "examples"


def test_without_a_name_they_are_listed(ask):
    done = ask("example")

    assert [line.split()[0] for line in done.out.splitlines()] == list(EXAMPLES)
    assert done.err == "next: daydream example synthetic_gpt_gpu.json.gz\n"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_what_the_repository_holds(ask, folder, name):
    done = ask("example", name, "-o", f"copy_of_{name}")

    assert done.code == 0
    assert (folder / f"copy_of_{name}").read_bytes() == (SOURCE / name).read_bytes()
    assert f"copy_of_{name}" in done.err.splitlines()[-1]


def test_nothing_is_written_over_and_unknown_names_are_refused(ask, folder):
    (folder / "train_gpt.py").write_text("mine")
    kept, unknown = ask("example train_gpt.py"), ask("example gpt")

    assert (kept.code, unknown.code) == (1, 1)
    assert (folder / "train_gpt.py").read_text() == "mine"
    assert "unknown example 'gpt'; choose synthetic_gpt_gpu.json.gz" in unknown.err
    assert ask("example train_gpt.py --force").code == 0
