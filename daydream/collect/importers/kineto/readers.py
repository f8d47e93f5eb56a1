"""Processes that read parts of Kineto files side by side; what they gather is what one would.

They are started for large files alone, and end with the import or the process that started them, however
that ends: they read what to do from a pipe. They write no file. Whatever goes wrong there, also where one
of them is killed, the file is read again by this process alone, which then says what is wrong with it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from daydream.collect.importers.kineto.blocks import (
    BLOCK_BYTES,
    LEAST_BYTES,
    EventReader,
    Part,
    is_packed,
    json_bytes,
    opened,
    parts_of_packed,
    parts_of_plain,
)
from daydream.collect.importers.kineto.events import Header
from daydream.collect.importers.kineto.rows import Gathered, Rows
from daydream.collect.importers.kineto.values import NeedsDigitsError
from daydream.parallel.map_on import cores

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_READERS = 8  # more have nothing to do: what follows the reading is done by one process
AHEAD = 2  # parts a process that are under way: bounds the memory
SIZE_BYTES = 8
START = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from daydream.collect.importers.kineto.readers import serve; serve()"
)

Task = tuple[
    Path, Part | None, bool, int, int | None
]  # file, part, exact, block's bytes, most bytes unpacked
# Rows, the header behind the last part, how many rows could not be read, the share of the file read so far.
Answer = tuple[Gathered, Header | None, int, float]


class Readers:
    """Processes that read for this one, started when a file is worth it; a context manager."""

    def __init__(self, count: int | None = None, *, least_bytes: int = LEAST_BYTES) -> None:
        self._count = min(cores(), MOST_READERS) if count is None else count
        self._least_bytes = least_bytes
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None
        self._expected: deque[Path] = deque()
        self._ahead: Iterator[Answer] = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    _close(pipe)
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def expect(
        self, paths: Sequence[Path], max_unpacked: int | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        """Read ahead the files that are too small to be cut, each as a whole; they are asked for in order."""
        small = [path for path in paths if json_bytes(path) < self._least_bytes]
        if self._count < 2 or len(small) < 2 or sum(map(json_bytes, small)) < self._least_bytes:
            return
        tasks: list[Task] = [(path, None, False, block_bytes, max_unpacked) for path in small]
        self._expected, self._ahead = deque(small), self._in_order(iter(tasks))

    def rows(self, reader: EventReader, progress: Callable[[float], None] | None = None) -> Rows | None:
        """Return the rows of a file and complete its reader; None if this process had better read it alone.

        Raises `NeedsDigitsError` as a reader of the whole would.
        """
        try:
            if self._expected and self._expected[0] == reader.path:
                self._expected.popleft()
                return _joined(reader, [next(self._ahead)])
            if self._count < 2 or json_bytes(reader.path) < self._least_bytes:
                return None
            return _joined(reader, self._in_order(self._tasks(reader)), progress)
        except NeedsDigitsError:
            raise
        except Exception:  # noqa: BLE001 - whatever it was, who reads the file alone says it
            self._expected.clear()
            return None

    def _tasks(self, reader: EventReader) -> Iterator[Task]:
        with opened(reader.path, reader.max_unpacked) as (file, position, size):
            if is_packed(reader.path):
                parts = parts_of_packed(reader.path, file, lambda: position() / size, reader.block_bytes)
            else:
                parts = parts_of_plain(reader.path, file, size, reader.block_bytes)
            for part in parts:
                yield reader.path, part, reader.exact_times, reader.block_bytes, reader.max_unpacked

    def _in_order(self, tasks: Iterator[Task]) -> Iterator[Answer]:
        """Yield the answers to tasks in their order; few are under way at a time."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count)
        under_way: deque[Future[Answer]] = deque()
        for task in tasks:
            if len(self._processes) < self._count:
                self._start()
            under_way.append(self._threads.submit(self._ask, task))
            if len(under_way) >= AHEAD * self._count:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()

    def _start(self) -> None:
        """Start a process, which is no part of this one's group: Ctrl-C is for this one alone."""
        process = subprocess.Popen(  # noqa: S603 - Python itself
            [sys.executable, "-c", START, *sys.path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        self._idle.put(process)

    def _ask(self, task: Task) -> Answer:
        """Return a process's answer. Raises `NeedsDigitsError`, or `EOFError` if it has none."""
        process = self._idle.get()
        try:
            assert process.stdin is not None  # noqa: S101 - both are pipes
            assert process.stdout is not None  # noqa: S101
            _send(process.stdin, task)
            failure, answer = _received(process.stdout)
        finally:
            self._idle.put(process)
        if failure == NeedsDigitsError.__name__:
            raise NeedsDigitsError
        if answer is None:
            raise EOFError(failure)
        found: Answer = answer
        return found


def _joined(
    reader: EventReader, answers: Iterable[Answer], say: Callable[[float], None] | None = None
) -> Rows:
    rows = Rows(exact=reader.exact_times)
    unreadable, header = 0, None
    for part, found, missed, share in answers:
        rows.join(part)
        unreadable, header = unreadable + missed, found
        if say is not None:
            say(share)
    if header is None:
        raise EOFError("the last part was not read")
    reader.header, reader.unreadable = header, unreadable
    return rows


# In the processes ----------------------------------------------------------------------------------


def serve() -> None:
    """Answer requests until there are no more, or until nobody listens."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        try:
            task = _received(requests)
        except EOFError:
            return
        found: tuple[str | None, Answer | None]
        try:
            found = None, _read(*task)
        except Exception as error:  # noqa: BLE001 - the other side reads the file itself then
            found = type(error).__name__, None
        _send(answers, found)


def _read(
    path: Path,
    part: Part | None,
    exact: bool,  # noqa: FBT001 - as it stands in a task
    block_bytes: int,
    max_unpacked: int | None,
) -> Answer:
    """Return what a part of a file holds, or a whole one."""
    reader = EventReader(path, exact_times=exact, block_bytes=block_bytes, max_unpacked=max_unpacked)
    rows = Rows(exact=exact)
    try:
        for events in reader if part is None else reader.of_part(part):
            rows.add(events)
            del events
    except NeedsDigitsError:
        if part is not None:
            raise
        return _read(path, part, True, block_bytes, max_unpacked)
    complete = part is None or part.last
    return (
        rows.gathered(), reader.header if complete else None, reader.unreadable,
        1.0 if part is None else part.share,
    )  # fmt: skip


def _send(pipe: IO[bytes], what: Any) -> None:
    packed = pickle.dumps(what, protocol=5)
    pipe.write(len(packed).to_bytes(SIZE_BYTES, "little"))
    pipe.write(packed)
    pipe.flush()


def _received(pipe: IO[bytes]) -> Any:
    """Return what the other side sent. Raises `EOFError` if it has ended."""
    size = pipe.read(SIZE_BYTES)
    packed = pipe.read(int.from_bytes(size, "little")) if len(size) == SIZE_BYTES else b""
    if not packed:
        raise EOFError
    return pickle.loads(packed)  # noqa: S301 - from the process that this one started, or was started by


def _close(pipe: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what was not yet written has no reader
        pipe.close()
