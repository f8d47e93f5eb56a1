"""What is uploaded at a release: an sdist that is the repository, a wheel that says where it comes from."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest
from test_repository import EXAMPLES, PROJECT, ROOT, files

from daydream.transforms import registry

pytestmark = pytest.mark.slow  # one process runs this file: builds of one tree disturb each other
MADE = {"PKG-INFO", "setup.cfg"}  # by setuptools, as is the folder *.egg-info


@pytest.fixture(scope="module")
def uploads(tmp_path_factory):
    """An sdist and the wheel made from that sdist."""
    pytest.importorskip("build", reason="needs the package `build`, one of the dev extra")
    folder = tmp_path_factory.mktemp("uploads")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def test_an_sdist_holds_what_is_committed_and_nothing_else(uploads):
    with tarfile.open(uploads[0]) as archive:
        inside = {entry.name.partition("/")[2] for entry in archive if entry.isfile()}

    inside = {name for name in inside if ".egg-info/" not in name} - MADE
    assert inside == {path.relative_to(ROOT).as_posix() for path in files()} - MADE


def test_a_wheel_is_for_all_pythons_of_a_system(uploads):
    with zipfile.ZipFile(uploads[1]) as archive:
        names = set(archive.namelist())

    kind = "cp311-abi3" if sys.version_info >= (3, 11) else "cp310-cp310"
    assert uploads[1].name.startswith(f"daydream_sim-{PROJECT['version']}-{kind}-")
    assert {name.partition("/")[0] for name in names} == {
        "daydream", f"daydream_sim-{PROJECT['version']}.dist-info",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("variable", "value", "system"),
    [("CC", "/no/such/compiler", "-"), ("DAYDREAM_COMPILED", "0", "-py3-none-any.whl")],
)
def test_without_a_compiler_a_wheel_is_built_all_the_same(uploads, variable, value, system, tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(uploads[0])]
    subprocess.run(command, check=True, env=os.environ | {variable: value})

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert system in wheel.name
    assert [name for name in names if name.startswith("daydream/compiled/_engine.")] == []
    assert "daydream/compiled/__init__.py" in names


def test_a_wheel_holds_the_whole_package(uploads):
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "daydream").rglob("*.py")}
    optimizations = {f"optimizations/{path.name}" for path in (ROOT / "optimizations").glob("*.py")}
    with zipfile.ZipFile(uploads[1]) as archive:
        in_wheel = set(archive.namelist())

    assets = {path.relative_to(ROOT).as_posix() for path in (ROOT / "daydream/report/assets").iterdir()}
    examples = {
        f"daydream/examples/{path.name}"
        for end in ("py", "json.gz", "parquet")
        for path in EXAMPLES.glob(f"*.{end}")
    }
    optional = {f"daydream/{name}" for name in optimizations} | examples
    tables = {path.relative_to(ROOT).as_posix() for path in (ROOT / "daydream").rglob("*.[ct]sv")}
    shipped = {"daydream/py.typed", "daydream/agents/SKILL.md", *tables, *assets, *package, *optional}
    loops = {name for name in in_wheel if name.startswith("daydream/compiled/_engine.")}  # if built
    assert {name for name in in_wheel if ".dist-info/" not in name} == shipped | loops
    assert any(name.endswith("licenses/LICENSE") for name in in_wheel)


def test_an_installed_wheel_finds_its_optimizations(uploads, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", uploads[1]], check=True)

    listed = subprocess.run(
        [python, "-m", "daydream", "whatif", "--list", "--json"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip

    names = {each["name"] for each in json.loads(listed.stdout)["optimizations"]}
    assert names == {*registry.names()}
