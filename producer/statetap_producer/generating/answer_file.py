"""The file of answered conversations while it is made, and when it is done.

``FILE.partial`` grows by a line for each answered row, in whatever order answers come: a digest of
the row and a mark, then the row as it will stand in FILE. ``FILE.made`` says what FILE was made
from. Neither has a name that is taken for a dataset.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from statetap_contract import UsageError
from statetap_contract.strict_json import FieldReader

from statetap_producer.run.durable_file import durable_file

_VERSION: Final = 1

#: Hex digits of a row's digest.
_DIGEST_WIDTH: Final = 32

#: What follows the digest, by whether an answer of the row was cut.
_MARKS: Final = {False: b" ", True: b"-"}


@dataclass(frozen=True, slots=True)
class AnswerInputs:
    """What an answer follows from, beside the conversation."""

    model: str
    max_new_tokens: int
    temperature: float | None
    is_replacing: bool

    def to_json(self) -> dict[str, object]:
        return {"version": _VERSION} | asdict(self)


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """Rows of a dataset by what became of them, and answers."""

    num_rows: int
    num_left_out: int
    #: Rows with an answer that ended because it had as many tokens as were allowed.
    num_cut: int
    #: Of the rows left out, those that the server did not answer. It may another time.
    num_refused: int = 0


class PartialFile:
    """``FILE.partial``. Made by ``open``; lines are there whole, or are dropped.

    What is written survives ``kill -9``; a power loss may cost the last half minute.
    """

    def __init__(self, path: Path, fd: int, inputs: AnswerInputs) -> None:
        self._path = path
        self._fd = fd
        #: Where the row with each digest starts, and its length.
        self._places: dict[bytes, tuple[int, int]] = {}
        self._cut: set[bytes] = set()
        self._end = 0
        self._read(inputs)

    @classmethod
    @contextmanager
    def open(cls, path: Path, inputs: AnswerInputs) -> Iterator[Self]:
        """Opens the file, or begins it.

        Raises:
            UsageError: kind ``partial-differs``, it was begun with other options or another model;
                ``partial-unreadable``; ``partial-taken``, another process is at it.
        """
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    "partial-taken",
                    f"another process writes to {path}; wait for it or give another --out",
                ) from error
            yield cls(path, fd, inputs)
        finally:
            os.close(fd)

    def __contains__(self, digest: object) -> bool:
        return digest in self._places

    def append(self, digest: bytes, row: bytes, *, is_cut: bool) -> None:
        """Adds a row, as JSON; ``is_cut`` where one of its answers is. Raises OSError."""
        text = row + b"\n"
        self._write(digest.hex().encode() + _MARKS[is_cut] + text)
        self._places[digest] = (self._end - len(text), len(text))
        if is_cut:
            self._cut.add(digest)

    def num_cut(self, digests: Iterable[bytes]) -> int:
        """Of the rows with these digests, those with an answer that was cut."""
        return sum(digest in self._cut for digest in digests)

    def publish(self, out: Path, digests: Iterable[bytes], *, is_final: bool) -> None:
        """Writes FILE: the rows with these digests, as far as they are there, in this order.

        This file goes, unless a later call is to add rows. Raises OSError.
        """
        with durable_file(out) as temporary, temporary.open("wb") as stream:
            for digest in digests:
                if (place := self._places.get(digest)) is not None:
                    start, num_bytes = place
                    stream.write(os.pread(self._fd, num_bytes, start))
        if is_final:
            self._path.unlink()

    def _write(self, line: bytes) -> None:
        # In one piece, so that a signal finds either all of it or an end that is cut when it is
        # opened again.
        num_written = os.pwrite(self._fd, line, self._end)
        if num_written < len(line):
            raise OSError(f"no room for a whole line in {self._path}")
        self._end += num_written

    def _read(self, inputs: AnswerInputs) -> None:
        header = json.dumps(inputs.to_json()).encode() + b"\n"
        with os.fdopen(os.dup(self._fd), "rb") as stream:
            first = stream.readline()
            if not first.endswith(b"\n"):
                os.ftruncate(self._fd, 0)
                self._write(header)
                return
            self._check_header(first, inputs)
            self._end = len(first)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                if (digest := _digest_in(line)) is not None:
                    start = _DIGEST_WIDTH + 1
                    self._places[digest] = (self._end + start, len(line) - start)
                    if line[_DIGEST_WIDTH:start] == _MARKS[True]:
                        self._cut.add(digest)
                self._end += len(line)
        os.ftruncate(self._fd, self._end)

    def _check_header(self, line: bytes, inputs: AnswerInputs) -> None:
        try:
            found = json.loads(line)
            fields = FieldReader(found, "the first line")
            if fields.take("version", int) != _VERSION:
                raise ValueError("it is of another version of statetap")
        except (ValueError, RecursionError) as error:
            raise UsageError(
                "partial-unreadable",
                f"{self._path} is not what statetap generate leaves ({error}); move it away",
            ) from error
        for name, value in inputs.to_json().items():
            if found.get(name) != value:
                raise UsageError(
                    "partial-differs",
                    f"{self._path} was begun with {name} {found.get(name)!r} and not {value!r}; "
                    "go on with that, or remove the file to start over",
                )


class MadeRecord:
    """``FILE.made``: what a file of answers was made from."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._file = out.with_name(f"{out.name}.made")

    def find(self, dataset_digest: str, inputs: AnswerInputs) -> AnswerCounts | None:
        """The counts of FILE where it was made from this; None where there is no FILE.

        Raises:
            UsageError: kind ``out-exists``: FILE is something else.
        """
        if not self._out.exists():
            return None
        try:
            record = json.loads(self._file.read_bytes())
            if record["made_from"] == _made_from(dataset_digest, inputs):
                return AnswerCounts(**record["counts"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            pass
        raise UsageError(
            "out-exists",
            f"{self._out} is there already and was not made from this dataset, model and options; "
            "give another --out, or move it away",
        )

    def write(self, dataset_digest: str, inputs: AnswerInputs, counts: AnswerCounts) -> None:
        """To be written before FILE, which is what stands for the whole."""
        record = {"made_from": _made_from(dataset_digest, inputs), "counts": asdict(counts)}
        with durable_file(self._file) as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n")


def _made_from(dataset_digest: str, inputs: AnswerInputs) -> dict[str, object]:
    return {"dataset_digest": dataset_digest} | inputs.to_json()


def _digest_in(line: bytes) -> bytes | None:
    """The digest of a whole line; None for what a power loss left of one."""
    digest, mark, row = (
        line[:_DIGEST_WIDTH],
        line[_DIGEST_WIDTH : _DIGEST_WIDTH + 1],
        line[_DIGEST_WIDTH + 1 :],
    )
    try:
        json.loads(row)
        return bytes.fromhex(digest.decode("ascii")) if mark in _MARKS.values() else None
    except (ValueError, RecursionError):
        return None
