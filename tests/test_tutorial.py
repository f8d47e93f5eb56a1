"""The tutorial runs from top to bottom, and what is stored in it is what it prints.

After a change that is meant, `DAYDREAM_GOLDEN=write pytest tests/test_tutorial.py` stores the new
outputs; read the difference.
"""

import copy
import os
import re
import shutil

import pytest
from cli.command_line import daydream
from notebooks import execute, nbformat
from shared import EXAMPLES

pytest.importorskip("matplotlib", reason="needs matplotlib, one of the test extra")

NOTEBOOK = EXAMPLES / "tutorial.ipynb"
TRACE = "synthetic_gpt_gpu.json.gz"


@pytest.fixture(scope="module")
def stored():
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the trace, in which the notebook runs."""
    folder = tmp_path_factory.mktemp("tutorial")
    shutil.copy(EXAMPLES / TRACE, folder)
    return folder


@pytest.fixture(scope="module")
def executed(stored, folder):
    """The notebook after a run in a kernel of its own, as a reader would run it."""
    notebook = copy.deepcopy(stored)
    execute(notebook, folder, MPLBACKEND="module://matplotlib_inline.backend_inline", COLUMNS="96")
    notebook.metadata = stored.metadata
    for cell in notebook.cells:
        cell.metadata = {}  # when it ran
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    if os.environ.get("DAYDREAM_GOLDEN") == "write":
        nbformat.write(notebook, NOTEBOOK)
    return notebook


def joined(outputs):
    """Return outputs with what was printed in one piece; a kernel sends it in as many as it likes."""
    kept = []
    for output in outputs:
        if output.output_type == "stream" and kept and kept[-1].get("name") == output.name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    for output in kept:
        if output.output_type == "stream":
            output.text = without_terminal(output.text)
    return kept


def without_terminal(text):
    """Return what a command printed to the notebook's terminal: no line that was taken back, no colours."""
    kept = re.sub(r"^[^\n]*\n[^\n]*\x1b\[1A\x1b\[2K", "", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    return re.sub(r" +$", "", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", kept), flags=re.MULTILINE)


def printed(notebook):
    """Return what each cell printed, and its result if that is one of ours.

    Data frames and figures depend on other packages' versions, a ranking on how many
    optimizations there are.
    """
    return [
        [shown for output in cell.outputs if (shown := of_ours(output))]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def of_ours(output):
    if output.output_type == "stream":
        return output.text
    plain, html = (output.data.get(f"text/{kind}", "") for kind in ("plain", "html"))
    return [plain, html] if re.match("<(?!Figure|Ranking)", plain) else None


def source_of(stored, word):
    (source,) = (
        cell.source
        for cell in stored.cells
        if cell.cell_type == "code" and word in cell.source.split("\n")[0]
    )
    return source.partition("\n")[2]


def test_it_prints_what_is_stored_in_it(stored, executed):
    assert printed(executed) == printed(stored)


def test_its_links_lead_somewhere(stored):
    text = "\n".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\((?!https?://)([^)]+)\)", text)

    assert links
    assert [link for link in links if not (EXAMPLES / link).exists()] == []


def test_its_optimization_is_short_and_runs_from_the_command_line(stored, folder):
    source = source_of(stored, "%%writefile adam8bit.py")
    file = folder / "mine" / "adam8bit.py"
    file.parent.mkdir()
    file.write_text(source + "\n")

    command = ["whatif", "./mine/adam8bit.py", "--trace", TRACE, "--json"]
    answers = [
        daydream(*command, "--parameters", str(millions), folder=folder).json() for millions in (55, 110)
    ]

    code = source.split('"""')[-1].strip().splitlines()
    assert len(code) <= 10
    assert answers[0]["options"] == {"parameters": 55.0, "bandwidth": 1200.0}
    # The step is GPU-bound: so many more nanoseconds for so many more bytes at 1200 GB/s.
    more = answers[1]["predicted_ns"] - answers[0]["predicted_ns"]
    assert more == pytest.approx(55e6 * 16 / 1200, rel=0.01)
