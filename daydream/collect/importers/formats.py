"""The formats that are read, told by a file's first bytes, and which files of a folder they are.

A reader is loaded when a file of its format is read. A new format is one file beside this one and an entry
in `FORMATS`.
"""

from __future__ import annotations

import gzip
import importlib
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from daydream.errors import TraceError
from daydream.files.input_files import GZIP_MAGIC, StrPath, marked_encoding, reading
from daydream.lazy import regex

if TYPE_CHECKING:
    from daydream.collect.derive.recording import Recording

Progress = Callable[[float], None]


class Options(NamedTuple):
    """How a file is read: to how many bytes it may unpack, and whom to tell the share that is read.

    `beside` are the other files of a run that has several, `etrecord` what an ETDump was compiled from.
    """

    max_unpacked: int | None = None
    progress: Progress | None = None
    beside: Sequence[Path] = ()
    etrecord: Path | None = None

    def read(self, share: float) -> None:
        """Say how much of the file is read."""
        if self.progress is not None:
            self.progress(share)


class Format(NamedTuple):
    """A format of files, as readers find it: `package.module:function` in this folder.

    Attributes:
        recognizes: whether a file whose unpacked content begins so is of the format; it may open the path.
        reader: from (path, options) to the recordings in a file, one a process; it raises `TraceError`.
        runs: from files to those of each run, where several files are one.
        whole: what is said of a file that stands beside others, where it cannot.

    """

    recognizes: Callable[[Path, bytes], Any]
    reader: str
    runs: str = ""
    whole: str = ""

    def read(self, path: Path, options: Options) -> list[Recording]:
        """Return the recordings in a file, or of a run. Raises `TraceError` if it cannot be read."""
        found: list[Recording] = _loaded(self.reader)(path, options)
        return found

    def runs_of(self, paths: Sequence[Path]) -> list[list[Path]]:
        """Return the files of each run."""
        found: list[list[Path]] = (
            _loaded(self.runs)(paths) if self.runs else [[path] for path in paths]
        )
        return found


def _loaded(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(
        importlib.import_module(f"{__package__}.{module}"), function
    )
    return found


SQLITE_MAGIC = b"SQLite format 3\x00"
PARQUET_MAGIC = b"PAR1"
ETDUMP_MAGIC = b"ED00"
ETRECORD = b"ETRECORD_V0"
COLUMN = "event_block_name"  # the first one of Inspector's tables, and theirs alone
FOOTER = 8  # bytes at the end of a parquet file: the size of its schema, and its mark


def is_etdump(head: bytes) -> bool:
    """Return whether a file that begins so is an ETDump, with the size before it or without."""
    return ETDUMP_MAGIC in (head[8:12], head[4:8])


def is_inspector(path: Path, head: bytes) -> bool:
    """Return whether a file, in JSON or parquet, is a table of Inspector."""
    if head[:4] != PARQUET_MAGIC:
        return head.lstrip()[:1] in (b"[", b"{") and f'"{COLUMN}"'.encode() in head
    with path.open("rb") as file:
        file.seek(0, 2)
        size = file.tell()
        file.seek(max(0, size - FOOTER))
        length = min(
            int.from_bytes(file.read(4), "little"), size
        )  # a damaged file may say anything
        file.seek(max(0, size - FOOTER - length))
        return COLUMN.encode() in file.read(length)


ROCPROF_KEY = b'"rocprofiler-sdk-tool"'
KERNELS = "kernels"
CALLS = "calls"
COPIES = "copies"
AGENTS = "agents"
COUNTERS = "counters"
OTHER = "other"
"""Sorts of tables; the last one has times of something that is no row of a trace (memory, scratch)."""
TIMES = frozenset({"start_timestamp", "end_timestamp"})
NEEDED = {  # in this order: the first of which a table has all columns
    COUNTERS: frozenset({"counter_name", "counter_value", "kernel_name"}),
    AGENTS: frozenset({"node_id", "agent_type"}),
    KERNELS: TIMES | {"kernel_name", "correlation_id"},
    CALLS: TIMES | {"domain", "function"},
    COPIES: TIMES | {"direction"},
    OTHER: TIMES | {"kind"},
}


def columns_of(line: str) -> list[str]:
    """Return the names of the columns in a header, in lower case and without quotes."""
    return [name.strip().strip('"').strip().lower() for name in line.split(",")]


def table_of(columns: list[str]) -> str | None:
    """Return what sort of rocprofv3's tables has such columns; None if none has."""
    names = set(columns)
    return next((sort for sort, needed in NEEDED.items() if needed <= names), None)


def is_rocprof_table(head: bytes) -> bool:
    """Return whether a file that begins so is one of rocprofv3's CSV tables."""
    line = head.lstrip().split(b"\n", 1)[0]
    return b"," in line and table_of(columns_of(line.decode("utf-8", "replace"))) is not None


FIRST_PLANE = regex(
    rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12", re.DOTALL
)
"""The first field of an XSpace, a plane: its length, perhaps its id, and the mark of its name."""
NAMES = (b"/host:", b"/device:", b"#Chip", b"/virtualdevice:", b"Task Environment", b"Host CPUs")


def is_xplane(head: bytes) -> bool:
    """Return whether a file that begins so is a profile of JAX; of binary files any byte may be the first."""
    plane = FIRST_PLANE.match(head)
    return plane is not None and head[plane.end() + 1 :].startswith(NAMES)


def profile_of(folder: Path) -> Path:
    """Return the folder of the last profile in a folder that JAX logs to, else the folder itself."""
    profiles = folder / "plugins" / "profile"
    if not profiles.is_dir():
        return folder
    found = sorted(child for child in profiles.iterdir() if child.is_dir())
    return found[-1] if found else folder


SUFFIXES = (
    ".json",
    ".json.gz",
    ".sqlite",
    ".sqlite.gz",
    ".db",
    ".db.gz",
    ".etdp",
    ".pb",
    ".pb.gz",
    ".csv",
    ".csv.gz",
    ".parquet",
)
TABLES = (".csv", ".csv.gz")
SPACES = (".pb", ".pb.gz")
HEAD = 1024  # bytes that tell the format
REPORTS = {".nsys-rep", ".qdrep", ".ncu-rep", ".pickle", ".pkl"}
NAMED = {  # by the ends of their names: files that are not read, and the command that is to be run on them
    (".nsys-rep", ".qdrep"): (
        "a report of Nsight Systems; export it first: `nsys export --type sqlite {}`"
    ),
    (".ncu-rep",): (
        "a report of Nsight Compute, which holds no steps; export its counters: "
        "`ncu --import {} --csv --page raw > counters.csv`, and give a trace and --counters counters.csv"
    ),
    (".py",): "a script, not a trace; record it first: `daydream collect {}`",
}
SNAPSHOT = "a snapshot of PyTorch's memory, not a trace: `daydream memory --snapshot {}`"
BEGINNINGS = {  # likewise by how they begin, the first that matches
    rb"version https://(git-lfs|hawser)": "a Git LFS pointer, not the file itself; run `git lfs pull`",
    rb"/annex/objects/": "a git-annex pointer, not the file itself; run `git annex get`",
    rb"<[!?a-zA-Z]": "a page of HTML or XML, not the file itself; download it again (on GitHub: raw)",
    rb"(?s)PK\x03\x04.{26}[^\0]*data\.pkl|\x80\x02\x8a\x0al\xfc\x9c": (
        "a file of torch.save, not a trace; record one: `daydream collect SCRIPT`"
    ),
    rb"PK\x03\x04": "a ZIP archive; unpack it first",
    rb"\x28\xb5\x2f\xfd": "packed with zstd; unpack it first",
    rb"\xfd7zXZ": "packed with xz; unpack it first",
    rb"BZh": "packed with bzip2; unpack it first",
    rb"\x80[\x02-\x05]": (
        "a pickle, not a trace; a snapshot of PyTorch's memory: `daydream memory --snapshot {}`"
    ),
    rb"\{\s*\"(segments|device_traces)\"|\[\s*\{\s*\"(device|address)\"": SNAPSHOT,
    rb"\{.*\"columns\":\s*\[\"action\"": SNAPSHOT,
}


WHOLE_PROGRAM = "{} is the whole recording of one program; give it alone"
FORMATS = {  # the first that recognizes a file
    "inspector": Format(is_inspector, "executorch:read_inspector", whole=WHOLE_PROGRAM),
    "parquet": Format(
        lambda _path, head: head[:4] == PARQUET_MAGIC,
        "",
        whole="a parquet trace is whole; give it alone",
    ),
    "etdump": Format(
        lambda _path, head: is_etdump(head), "executorch:read_executorch", whole=WHOLE_PROGRAM
    ),
    "nsys": Format(lambda _path, head: head[:16] == SQLITE_MAGIC, "nsys:read_database"),
    "rocprof-csv": Format(
        lambda _path, head: is_rocprof_table(head),
        "rocprof:read_tables",
        runs="rocprof:runs_of_tables",
    ),
    "xplane": Format(lambda _path, head: is_xplane(head), "xplane:read_xplane"),
    "rocprof": Format(
        lambda _path, head: head.lstrip()[:1] == b"{" and ROCPROF_KEY in head, "rocprof:read_json"
    ),
    "kineto": Format(
        lambda _path, _head: False, "kineto.reader:read_kineto_file"
    ),  # any other JSON
}


def format_of(path: Path) -> str:
    """Return the format of a file by its first bytes, or its last; by its name where these tell none.

    It is a key of `FORMATS`. Raises `TraceError` for what stands in for a trace, and says what to do.
    """
    head = head_of(path)
    if head.startswith(b"PK") and ETRECORD in head:  # a ZIP file whose first member is its mark
        raise TraceError(
            f"{path} is an ETRecord; import the ETDump of its program with --etrecord {path.name}"
        )
    for name, one in FORMATS.items():
        if one.recognizes(path, head):
            return name
    text = head.lstrip()
    by_name = [what for ends, what in NAMED.items() if path.name.endswith(ends)]
    by_beginning = [what for begin, what in BEGINNINGS.items() if re.match(begin, text)]
    for what in by_name + by_beginning:
        raise TraceError(f"{path} is {what.format(shlex.quote(str(path)))}.")
    if path.suffix == ".parquet" and text[:1] not in (b"{", b"["):
        what = "is empty" if not head else "does not begin as one"
        raise TraceError(
            f"{path} is not a parquet file: it {what}. Import the profiler's file again."
        )
    if path.suffix == ".etdp":
        return "etdump"
    return "xplane" if path.name.endswith(SPACES) else "kineto"


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked, of text in UTF-8.

    Raises `TraceError` if it cannot be read.
    """
    with reading(path):
        with path.open("rb") as file:
            head = file.read(HEAD)
        if head[:2] == GZIP_MAGIC:
            with gzip.open(path) as packed:
                head = packed.read(HEAD)
    encoding = marked_encoding(head)
    return head if encoding is None else head.decode(encoding, "replace").encode()


def trace_files(sources: Sequence[StrPath]) -> list[Path]:
    """Return the files that are read of these files and folders. Raises `TraceError` for a folder of none.

    Of a folder these are the profiles that JAX wrote, else its traces; tables of rocprofv3, if there are no
    others. Of a folder that JAX logs to, those of the last profile in it.
    """
    files: list[Path] = []
    for source in sources:
        path = Path(source)
        if not path.is_dir():
            files.append(path)
            continue
        sorts: tuple[list[Path], ...] = ([], [], [], [])
        for child in profile_of(path).iterdir():
            if child.name.endswith(SPACES):
                sorts[0].append(child)
            elif child.suffix == ".parquet":  # what was imported from the others
                sorts[3].append(child)
            elif child.name.endswith(TABLES):
                sorts[2].extend([child] if is_rocprof_table(head_of(child)) else [])
            elif child.name.endswith(SUFFIXES):
                sorts[1].append(child)
        found = next(filter(None, sorts), None)
        if not found:
            for child in sorted(path.iterdir()):
                if child.suffix in REPORTS:
                    format_of(child)  # refuses it, with the command that it needs
            raise TraceError(
                f"{path} holds no trace; files ending in {', '.join(SUFFIXES)} were looked for"
            )
        files += sorted(found, key=lambda child: _natural(child.name))
    if not files:
        raise TraceError("no source was given; name a trace file or a folder of them")
    return files


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts rank2 before rank10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
