"""`daydream.handler` in a script's own torch.profiler: real processes, traces as good as `collect`'s."""

import subprocess
import sys
import textwrap

import pytest

import daydream

pytest.importorskip("torch", reason="records real training")

SCRIPT = textwrap.dedent("""
    import sys
    import torch
    from torch import nn
    from torch.profiler import profile, schedule

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    data, labels = torch.randn(16, 32), torch.randint(10, (16,))

    def train(profiler=None):
        for _ in range(14):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), labels)
            loss.backward()
            optimizer.step()
            if profiler is not None:
                profiler.step()
        print(loss.item())

    if len(sys.argv) == 1:
        train()
    else:
        import daydream
        ready = daydream.handler(sys.argv[1], suggestions="suggestions" in sys.argv)
        cycles = schedule(wait=1, warmup=1, active=4, repeat=2)
        recorded = {"record_shapes": True, "profile_memory": "memory" in sys.argv}
        with profile(schedule=cycles, on_trace_ready=ready, **recorded) as profiler:
            train(profiler)
        ready.close()
        assert not torch.nn.modules.module._global_forward_hooks
        print(*ready.saved)
""")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("handler") / "train.py"
    path.write_text(SCRIPT)
    return path


def run(script, *words):
    done = subprocess.run(
        [sys.executable, str(script), *words], cwd=script.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_every_cycle_is_a_trace_and_the_run_is_the_same(script):
    plain, done = run(script), run(script, "t.parquet", "memory")
    loss, names = done.stdout.splitlines()
    assert loss == plain.stdout.strip()
    assert names.split() == ["t.parquet", "t-2.parquet"]
    for name in names.split():
        trace = daydream.load(script.parent / name)
        replay = daydream.replay(trace)
        assert len(trace.metadata["steps"]) == 4
        assert abs(replay.error) < 0.01
        assert {"0", "2"} <= {*trace.text("layer")}
        assert {"forward", "backward", "optimizer"} <= {*trace.text("phase")}
        assert [one["name"] for one in trace.metadata["optimizers"]] == ["Adam"]
        assert trace.memory is not None
        assert daydream.whatif(replay, "fused-adam").predicted_ns < replay.replayed_ns


def test_it_ends_with_suggestions_in_the_log(script):
    done = run(script, "s.parquet", "suggestions")
    said = [line for line in done.stderr.splitlines() if line.startswith("daydream: ")]
    assert said[0] == "daydream: wrote s.parquet"
    assert said[1].startswith("daydream: top suggestions")
    assert any("fused-adam" in line for line in said)


def test_a_trace_that_cannot_be_written_is_one_line_and_training_goes_on(script):
    done = run(script, "nowhere/t.parquet")
    said = [line for line in done.stderr.splitlines() if line.startswith("daydream: ")]
    assert (
        said
        == ["daydream: no trace was written: cannot write nowhere/t.parquet: No such file or directory"] * 2
    )
    assert done.stdout.splitlines()[0] == run(script).stdout.strip()


def test_ranks_have_files_of_their_own(monkeypatch, tmp_path):
    from daydream.trainers.handler import own_path

    assert own_path(tmp_path / "t.parquet") == tmp_path / "t.parquet"
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert own_path(tmp_path / "t") == tmp_path / "t.rank3.parquet"
    (tmp_path / "t.rank3.parquet").touch()
    assert own_path(tmp_path / "t.parquet") == tmp_path / "t.rank3-2.parquet"
