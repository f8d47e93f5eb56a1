"""`daydream tool` as people type it."""

import json


def test_a_tool_prints_a_table_and_json(ask):
    text = ask("tool kernel-frequency --trace step.parquet").out
    assert text.startswith("kernels (")
    found = json.loads(ask("tool kernel-frequency --trace step.json.gz --json").out)
    assert found["schema"] == 1
    assert {"name", "count", "total_ns"} == set(found["kernels"][0])
    assert f"{found['kernels'][0]['count']:,}" in text.splitlines()[2]


def test_ones_own_tool_by_its_path(ask, folder):
    code = (
        "import daydream\n@daydream.tool\nclass Mine:\n    n = 0\n"
        "    def on_kernels(self, kernels):\n        print('aside')\n        self.n = len(kernels)\n"
        "    def result(self): return {'kernels': self.n}\n"
    )
    (folder / "mine.py").write_text(code)
    done = ask("tool ./mine.py --trace step.parquet")
    assert done.out.split()[0] == "kernels"
    assert int(done.out.split()[1].replace(",", "")) > 0


def test_a_list_of_tools(ask):
    listed = json.loads(ask("tool --list --json").out)["tools"]
    assert [tool["name"] for tool in listed][:2] == ["kernel-frequency", "top-kernels"]
    assert "idle-gaps" in ask("tool --list").out


def test_what_is_missing_is_one_line(ask):
    for words, code, said in (
        (("tool",), 2, "missing argument 'NAME'"),
        (("tool", "copies"), 2, "missing argument 'TRACE'"),
        (("tool", "copied", "--trace", "step.parquet"), 1, "Did you mean 'copies'?"),
        (("tool", "copies", "--trace", "step.parquet", "--range", "step"), 1, "is no range"),
    ):
        done = ask(*words)
        assert done.code == code
        assert said in done.err
