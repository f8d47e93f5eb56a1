"""An agent's way from a trace to a confirmed change, on the example that trains a small GPT."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="records and changes real training")
anyio = pytest.importorskip("anyio", reason="needs the extra `mcp`")
pytest.importorskip("mcp", reason="needs the extra `mcp`")
from agent_client import answer, client  # noqa: E402

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"


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


def test_an_agent_goes_from_a_trace_to_a_confirmed_change(tmp_path):
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
