"""No command writes over what it was given to read, however it was given."""

import shutil

import pytest

FAILED = 1
READ = "is read by this command"
TABLE = "kernel,duration_us\nvolta,1\n"
OWN = "def mine(graph):\n    graph.select(kind='kernel').scale(0.5)\n"


@pytest.mark.parametrize(
    "question",
    [
        "import runs -o runs/trace.parquet --force",
        "import runs -o runs/../runs/trace.parquet --force",
        "import runs -o link.parquet --force",
        "sweep scale --set factor=0.5,1 --trace step.parquet --table table.csv -o table.csv --force",
        "sweep ddp --set workers=2,4 --set cluster=dgx,table.csv --trace step.parquet -o table.csv --force",
        "sweep scale --set factor=0.5,1 --trace step.json.gz --trace step.parquet -o step.parquet --force",
        "calibrate --trace step.parquet --optimization ./mine.py -o mine.py --force",
        "collect -o mine.py --force mine.py",
        "collect -o table.csv --force mine.py --data table.csv",
    ],
)
def test_a_file_that_is_read_is_not_written(question, ask, folder):
    (folder / "runs").mkdir()
    shutil.copy(folder / "step.parquet", folder / "runs" / "trace.parquet")
    (folder / "link.parquet").symlink_to(folder / "runs" / "trace.parquet")
    (folder / "table.csv").write_text(TABLE)
    (folder / "mine.py").write_text(OWN)
    before = files_of(folder)

    done = ask(*question.split())

    assert done.code == FAILED, done.err
    assert READ in done.err
    assert files_of(folder) == before


def files_of(folder):
    """Return what files hold, but for what Python keeps of a file that it ran."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    return {path: path.read_bytes() for path in files}


def test_what_was_imported_into_the_folder_of_its_files_can_be_imported_again(ask, folder):
    for _ in range(2):
        done = ask("import ranks -o ranks/all.parquet --force")
        assert done.code == 0, done.err
