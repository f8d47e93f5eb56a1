"""`daydream mcp` with the official client, over stdio, in real processes."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from shared import EXAMPLES

anyio = pytest.importorskip("anyio", reason="needs the extra `mcp`")
pytest.importorskip("mcp", reason="needs the extra `mcp`")

from cli.command_line import daydream  # noqa: E402


@asynccontextmanager
async def client(root, *options):
    """Connect to a server in a process of its own, which answers below `root`."""
    from mcp import Client, StdioServerParameters, stdio_client

    words = ["-m", "daydream", "mcp", "--root", str(root), *options]
    # The client hands on few variables by itself; all are wanted here, that of the cache among them.
    started = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with Client(stdio_client(started)) as connected:
        yield connected


async def answer(connected, tool, **arguments):
    """Return a tool's answer, a dictionary."""
    result = await connected.call_tool(tool, arguments)
    assert not result.is_error, result.content[0].text
    return result.structured_content


def refusals(root, *asked, options=(), then=None):
    """Return what a server says to questions that it refuses, each (tool, arguments), then an answer."""

    async def main():
        async with client(root, *options) as connected:
            said = []
            for tool, arguments in asked:
                result = await connected.call_tool(tool, arguments)
                assert result.is_error, result.structured_content
                said.append(result.content[0].text)
            return said, then and await answer(connected, then[0], **then[1])

    return anyio.run(main)


# `daydream mcp` with the official client, over stdio, in real processes


GPU, CPU = "synthetic_gpt_gpu.json.gz", "mlp_cpu.json.gz"
TOOLS = ["info", "explain", "rank", "whatif", "blame", "memory", "plan", "compare", "confirm"]
LARGEST = 8000  # bytes of an answer: some 2,000 tokens
OWN = """
from pathlib import Path

Path("ran").touch()

def halved(graph, *, factor: float = 0.5):
    graph.select(kind="kernel").scale(factor)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents") / "root"
    folder.mkdir()
    for name in (GPU, CPU):
        shutil.copy(EXAMPLES / name, folder)
    shutil.copy(EXAMPLES / GPU, folder.parent / "outside.json.gz")
    (folder / "link.json.gz").symlink_to("../outside.json.gz")
    (folder / "halved.py").write_text(OWN)
    return folder


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("DAYDREAM_CACHE", "off")


def from_command(root, *words):
    return daydream(*words, "--json", folder=root).json()


@pytest.mark.slow
def test_every_tool_answers_what_the_command_does_and_small(root):
    async def main():
        async with client(root) as connected:
            skill = await connected.read_resource("daydream://skill")
            assert skill.contents[0].text == daydream("mcp", "--skill", folder=".").out
            tools = (await connected.list_tools()).tools
            assert [tool.name for tool in tools] == TOOLS
            assert all(tool.output_schema and tool.description for tool in tools)
            assert {tool.name: tool.annotations.read_only_hint for tool in tools}["confirm"] is False
            assert all(
                tool.input_schema["properties"]["optimization"]["description"]
                for tool in tools
                if tool.name in {"explain", "whatif", "compare", "confirm"}
            )
            asked = [
                ("info", {"trace": GPU}),
                ("explain", {"trace": GPU}),
                ("rank", {"trace": GPU}),
                ("whatif", {"trace": GPU, "optimization": "amp", "options": {"math_speedup": 2.5}}),
                ("compare", {"before": CPU, "after": CPU}),
            ]
            return {name: await answer(connected, name, **arguments) for name, arguments in asked}

    got = anyio.run(main)
    assert {
        name: len(json.dumps(each)) for name, each in got.items() if len(json.dumps(each)) > LARGEST
    } == {}
    assert all(each["falsified_by"] for each in got.values())

    for name, words in (
        ("info", [GPU]),
        ("explain", ["--trace", GPU]),
        ("rank", ["--no-curves", "--trace", GPU]),
        ("whatif", ["amp", "--math-speedup", "2.5", "--trace", GPU]),
        ("compare", [CPU, CPU]),
    ):
        document = from_command(root, name, *words)
        assert of_same_figures(got[name], document), name
    assert len(got["rank"]["changes"]) == 5
    assert got["rank"]["cut"]["changes"] == len(from_command(root, "rank", "--trace", GPU)["changes"])


def of_same_figures(answer, document):
    """Return whether all whole numbers of an answer are those of the command, at the same places."""
    if isinstance(answer, dict):
        keys = answer.keys() - {"cut", "falsified_by"}
        return all(of_same_figures(answer[key], document[key]) for key in keys)
    if isinstance(answer, list):
        return all(map(of_same_figures, answer, document))
    return answer == document or not isinstance(answer, int)


def whatif(optimization, **options):
    return "whatif", {"trace": GPU, "optimization": optimization} | ({"options": options} if options else {})


CANNOT_BE_ASKED = {
    "Did you mean 'amp'": whatif("apm"),
    "no such file": ("whatif", {"trace": "none.parquet", "optimization": "amp"}),
    "no such option '--amp.html'": whatif("amp", html="x.html"),
    "exclude": whatif("amp+tf32", math_speedup=2),
    "no name of an option": whatif("amp", **{"--output x": "y"}),
    "no memory events": ("memory", {"trace": CPU}),
    "range of steps": ("info", {"trace": GPU, "steps": "one"}),
    "Expected `str`": ("rank", {"trace": 3}),
    "required field `trace`": ("rank", {}),
    "unknown field `name`. Its arguments are trace, steps, optimization":
        ("whatif", {"trace": GPU, "name": "amp"}),
    "unknown tool 'nothing'": ("nothing", {}),
}  # fmt: skip


@pytest.mark.slow
def test_what_cannot_be_asked_is_a_line_and_the_server_goes_on(root):
    said, info = refusals(root, *CANNOT_BE_ASKED.values(), then=("info", {"trace": GPU}))
    assert info["covered"] == 3
    for text, part in zip(said, CANNOT_BE_ASKED, strict=True):
        assert part in text
        assert "Traceback" not in text


def test_nothing_outside_the_root_is_read_and_no_code_is_run(root):
    # the last of them is a folder with that link
    names = "../outside.json.gz", str(root.parent / "outside.json.gz"), "link.json.gz", "."
    outside = [("info", {"trace": name}) for name in names]
    outside += [("compare", {"before": GPU, "after": "link.json.gz"}), whatif("gpu", to="../cluster.toml")]
    code = [whatif(name) for name in ("halved.py", "./halved.py+amp", str(root / "halved.py"))]
    code.append(("explain", {"trace": GPU, "optimization": "halved.py"}))
    code.append(("confirm", {"optimization": "fused-adam", "script": "halved.py"}))

    said, _ = refusals(root, *outside, *code)
    first, second = said[: len(outside)], said[len(outside) :]
    assert [text for text in first if "outside the root" not in text] == []
    assert [text for text in second if "runs none" not in text and "names no optimization" not in text] == []
    assert not (root / "ran").exists()


@pytest.mark.slow
def test_an_optimization_by_path_is_run_where_code_is_allowed(root):
    try:
        outside, got = refusals(
            root, whatif("../halved.py"), options=["--allow-code"], then=whatif("halved.py", factor=0.25)
        )
        assert got["options"] == {"factor": 0.25}
        assert got["predicted_ns"] < got["replayed_ns"]
        assert "outside the root" in outside[0]
    finally:
        (root / "ran").unlink(missing_ok=True)


def running(root):
    """Return the processes that run in the root: questions of a server that was started elsewhere."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                if (each / "cwd").readlink() == root:
                    found.append(int(each.name))
            except OSError:
                continue
    return found


def gone(root, patience_s=20.0):
    """Wait until nothing runs in the root; return whether that came."""
    until = time.monotonic() + patience_s
    while running(root) and time.monotonic() < until:
        time.sleep(0.05)
    return not running(root)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks at processes as Linux shows them")
@pytest.mark.parametrize("how", ["call", "client"])
def test_the_work_ends_with_a_call_that_is_cancelled_and_with_its_client(root, how):
    async def main():
        async with client(root) as connected:
            begun = anyio.Event()

            async def heard(*_):
                begun.set()

            async with anyio.create_task_group() as group:
                group.start_soon(lambda: connected.call_tool("rank", {"trace": GPU}, progress_callback=heard))
                await begun.wait()
                assert running(root)
                group.cancel_scope.cancel()
            if how == "call":
                ended = await anyio.to_thread.run_sync(gone, root)
                return ended, await answer(connected, "info", trace=GPU)
        return gone(root), None

    ended, info = anyio.run(main)
    assert ended, running(root)
    assert how == "client" or info["covered"] == 3


@pytest.mark.slow
def test_two_clients_ask_at_once_and_each_gets_its_own_answers(root):
    async def main():
        got = {}
        async with client(root) as one, client(root) as other, anyio.create_task_group() as group:

            async def ask(connected, who, name):
                got[who, name] = (await answer(connected, "whatif", trace=GPU, optimization=name))[
                    "optimization"
                ]

            for who, connected in enumerate((one, other)):
                for name in ("amp", "cuda-graphs", "fused-adam"):
                    group.start_soon(ask, connected, who, name)
        return got

    got = anyio.run(main)
    assert got == {(who, name): name for who in (0, 1) for name in ("amp", "cuda-graphs", "fused-adam")}


def test_the_skill_names_every_tool():
    text = daydream("mcp", "--skill", folder=".").out
    assert [name for name in TOOLS if f"`{name}`" not in text] == []


# An agent's way from a trace to a confirmed change, on the example that trains a small GPT


SCRIPT = EXAMPLES / "train_gpt.py"


async def agent(root):
    """Do what the skill says: trust, find, look, confirm. Returns each answer by its tool."""
    got = {}
    async with client(root, "--allow-code") as connected:
        got["info"] = await answer(connected, "info", trace="before.parquet")
        assert abs(got["info"]["replay"]["error"]) < 0.02
        got["explain"] = await answer(connected, "explain", trace="before.parquet")
        got["rank"] = await answer(connected, "rank", trace="before.parquet", top=50)
        got["memory"] = await answer(connected, "memory", trace="before.parquet")
        for each in got["rank"]["changes"]:  # the first that an agent may make in the script
            if each["needs"] or not each["code"] or each["saving_ns"] <= 0:
                continue
            name = each["optimization"]
            got["whatif"] = await answer(connected, "whatif", trace="before.parquet", optimization=name)
            change = {"optimization": name, "script": "train_gpt.py", "args": ["--steps", "200"]}
            result = await connected.call_tool("confirm", change)
            if not result.is_error:
                got["confirm"] = result.structured_content
                return got
            assert "cannot make that change in a running script" in result.content[0].text
    raise AssertionError("no change could be made")


@pytest.mark.slow
def test_an_agent_goes_from_a_trace_to_a_confirmed_change(tmp_path):
    pytest.importorskip("torch", reason="records and changes real training")
    shutil.copy(SCRIPT, tmp_path)
    words = ["collect", "--stop-after", "-o", "before.parquet", SCRIPT.name]
    command = [sys.executable, "-m", "daydream", *words]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    got = anyio.run(agent, tmp_path)

    confirmed, predicted = got["confirm"], got["whatif"]
    assert confirmed["optimization"] == predicted["optimization"]
    assert confirmed["code"] == predicted["code"]
    low, high = confirmed["predicted_low_ns"], confirmed["predicted_high_ns"]
    assert low < confirmed["predicted_ns"] < high
    assert confirmed["inside"] == (low <= confirmed["confirmed_ns"] <= high)
    assert confirmed["baseline_ns"] > 0
    assert got["memory"]["devices"][0]["peak_allocated_bytes"] > 0
