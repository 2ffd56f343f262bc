"""What tuning measured, in SQLite: a row for each candidate of each question on each machine and in each run of tuning.

Nothing is decided when rows are written. ``winner`` decides from the rows of one run of one question, whenever they are
read, so that the same times always give the same schedules. The rows of a question are written together, as soon as it
has been measured; any number of processes may write and read. The file is in SQLite's mode with a rollback journal: in
the other, with a log that is written ahead, reading takes files beside it, which a read-only folder cannot get, and the
change to that mode does not wait for other processes.
"""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from luminal.core import config, device
from luminal.core.decisions import FORMULA, LANGUAGE, Decisions
from luminal.core.errors import LuminalError
from luminal.core.target import Target, processor
from luminal.timing import Timing

VERSION = 1
LEAST_GAIN = 0.03  # a candidate must be faster by at least this part of the default's time
SHIPPED = Path(__file__).parent / "shipped.json"

_SCHEMA = """
CREATE TABLE run (number INTEGER PRIMARY KEY AUTOINCREMENT);
CREATE TABLE measurement (
    target TEXT NOT NULL,
    question TEXT NOT NULL,
    run INTEGER NOT NULL REFERENCES run (number),
    place INTEGER NOT NULL,    -- among the candidates: 0 is the default, the others by estimate
    candidate TEXT NOT NULL,
    best REAL NOT NULL,        -- seconds
    median REAL NOT NULL,
    runs INTEGER NOT NULL,
    fault TEXT NOT NULL,       -- why it must not be chosen, empty where it may
    PRIMARY KEY (target, question, run, candidate)
) WITHOUT ROWID;
"""

_FILE = "tuning.sqlite"
STATIC = "none: judged by machine code"  # the processor of records of targets whose GPU was not there
PATIENCE = 30.0  # seconds to wait for other processes


class RecordsError(LuminalError):
    """The file of what tuning measured cannot be used."""


class DamagedRecordsError(RecordsError):
    """The file holds no records, or not those of this version."""


@dataclass(frozen=True)
class Measured:
    """One candidate: its place among the candidates (0 is the default: what the package brings, else the first by
    estimate), the fastest and the median of its ``runs`` in seconds, and the ``fault`` that keeps it from being chosen,
    if any."""

    place: int
    candidate: str
    best: float
    median: float
    runs: int
    fault: str = ""


def winner(measured: Iterable[Measured]) -> str | None:
    """The candidate to take in the place of the default; None where the default is to stay. The rows are of one run.

    It is the one whose fastest run was the shortest, of those that are ``faster`` than the default. Of equal ones, the
    one with the lower estimate.
    """
    rows = [row for row in measured if not row.fault and row.runs]
    default = next((row for row in rows if row.place == 0), None)
    found = [row for row in rows if row.place > 0 and default is not None and faster(row, default)]
    return min(found, key=lambda row: (row.best, row.place)).candidate if found else None


def faster(found: Measured | Timing, default: Measured | Timing, least: float = LEAST_GAIN) -> bool:
    """Whether the fastest run of a candidate was shorter than the default's by more than ``least_gain``."""
    return found.best < default.best * (1 - least_gain(default, found, least))


def least_gain(default: Measured | Timing, found: Measured | Timing, least: float = LEAST_GAIN) -> float:
    """The part of the default's time by which another candidate has to be faster: ``least``, or the noise, which is
    what the medians of either lie above their fastest runs."""
    return max(least, *(row.median / row.best - 1 for row in (default, found)))


def machine(target: Target, threads: int, of: str | None = None) -> str:
    """The properties of a machine on which times depend, as text. Its processor is ``of``, if given, else this one; a
    GPU's is the GPU, whose times do not depend on threads."""
    if target.grid is not None:
        of, threads, target = of or device.name(target.dialect) or processor(), 0, replace(target, threads=0)
    facts = {
        "processor": of or processor(), "target": target.name, "features": sorted(target.features),
        "registers": target.registers, "caches": [target.l1, target.l2, target.l3],
        "precision": target.precision.name, "threads": threads, "divided": target.threads,
    }  # fmt: skip
    return json.dumps(facts, sort_keys=True)


def default_path() -> Path:
    """The user's file."""
    return config.RECORDS.value or config.CACHE.value / _FILE


class Records:
    """A file of records, made with its first row. Methods raise RecordsError where it is damaged, of another version,
    held by another process for ``PATIENCE`` seconds, or where it cannot be read or written."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()

    def begin(self) -> int:
        """The number of a new run of tuning."""
        with self._writing() as database:
            number = database.execute("INSERT INTO run DEFAULT VALUES").lastrowid
        assert number is not None
        return number

    def add(self, machine: str, question: str, run: int, measured: Sequence[Measured]) -> None:
        """The candidates of one question, all at once."""
        rows = [(machine, question, run, m.place, m.candidate, m.best, m.median, m.runs, m.fault) for m in measured]
        with self._writing() as database:
            database.executemany("INSERT OR REPLACE INTO measurement VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def latest(self, machine: str) -> dict[str, list[Measured]]:
        """The rows of each question from the latest run that measured it."""
        query = """
            SELECT question, place, candidate, best, median, runs, fault FROM measurement AS m WHERE target = ? AND
            run = (SELECT max(run) FROM measurement WHERE target = m.target AND question = m.question)
            ORDER BY question, place, candidate
        """
        found: dict[str, list[Measured]] = {}
        for question, *row in self._read(query, machine):
            measured = Measured(*row)
            if isinstance(measured.best, float) and isinstance(measured.median, float):  # else damaged
                found.setdefault(question, []).append(measured)
        return found

    def machines(self) -> list[str]:
        """The machines that there are records of."""
        return [text for (text,) in self._read("SELECT DISTINCT target FROM measurement ORDER BY target")]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the only writer. The file is made where there is none."""
        with self._explained("written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._connected("rwc") as database:
                database.execute("BEGIN IMMEDIATE")
                if self._is_empty(database):
                    for statement in _SCHEMA.split(";"):
                        database.execute(statement)
                    database.execute(f"PRAGMA user_version = {VERSION}")
                yield database
                database.execute("COMMIT")

    def _read(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """The rows that ``query`` gives; none where there are no records yet."""
        try:
            return self._found(query, values)
        except DamagedRecordsError as error:
            if self.path != config.CACHE.value / _FILE or config.RECORDS.value:
                raise
            # No compilation fails because of an old file of the cache.
            aside = self.path.with_name(f"{_FILE}.damaged")
            self.path.replace(aside)
            warnings.warn(f"{error}; it is {str(aside)!r} now, and new records begin", stacklevel=2)
            return []

    def _found(self, query: str, values: Sequence[str]) -> list[tuple[Any, ...]]:
        with self._explained("read"):
            if not self.path.exists():
                return []
            try:
                return self._rows("rw", query, values)  # not "ro": what a killed writer left half done is undone first
            except sqlite3.OperationalError as error:
                # Earlier versions made files with a log that is written ahead. Where nothing can be made beside such a
                # one, it is read as it is. What a killed writer left half done is not: it would be half of an answer.
                unfinished = error.sqlite_errorcode == sqlite3.SQLITE_READONLY_ROLLBACK
                if unfinished or _kind(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                    raise
                return self._rows("ro&immutable=1", query, values)

    def _rows(self, mode: str, query: str, values: Sequence[str]) -> list[tuple[Any, ...]]:
        with self._connected(mode) as database:
            database.execute("BEGIN")
            return [] if self._is_empty(database) else database.execute(query, values).fetchall()

    @contextmanager
    def _connected(self, mode: str) -> Iterator[sqlite3.Connection]:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        database = sqlite3.connect(uri, timeout=PATIENCE, isolation_level=None, uri=True)
        try:
            yield database
        finally:
            database.close()  # what was not committed is undone

    def _is_empty(self, database: sqlite3.Connection) -> bool:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version == 0 and tables == 0:
            return True
        if version != VERSION:
            raise DamagedRecordsError(self._damaged(f"it is of version {version}, expected {VERSION}"))
        return False

    @contextmanager
    def _explained(self, done: str) -> Iterator[None]:
        """Around an access to the file, described by ``done``: errors tell the user what to do."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            kind = _kind(error)
            if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise RecordsError(
                    f"the records of tuning in {str(self.path)!r} cannot be {done} now: another process has been "
                    f"writing to them for {PATIENCE:.0f} seconds ({error}); try again when it has ended"
                ) from error
            if isinstance(error, OSError) or kind in _OUTSIDE:
                raise RecordsError(
                    f"the records of tuning cannot be {done} in {str(self.path)!r} "
                    f"({getattr(error, 'strerror', None) or error}): {self._elsewhere()}"
                ) from error
            raise DamagedRecordsError(self._damaged(str(error))) from error

    def _elsewhere(self) -> str:
        """How to have the records in another place."""
        if self.path == config.RECORDS.value:
            return f"name another file in {config.RECORDS.variable}"
        return f"set {config.CACHE.variable} to another folder"

    def _damaged(self, reason: str) -> str:
        return (
            f"the records of tuning in {str(self.path)!r} cannot be used: {reason}; remove the file, name another in "
            f"{config.RECORDS.variable}, or do without with {config.NO_RECORDS.variable}=1"
        )


# Faults outside of the file: SQLite's codes for no permission, no place to write, and a disk that fails.
_OUTSIDE = (
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
)  # fmt: skip


def _kind(error: Exception) -> int:
    """SQLite's primary code of an error; 0 for other errors."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def winners(records: Records, machine: str) -> dict[str, str]:
    """The chosen candidate of each question, the default included."""
    found: dict[str, str] = {}
    for question, measured in records.latest(machine).items():
        default = next((m.candidate for m in measured if m.place == 0), None)
        chosen = winner(measured) or default
        if chosen is not None:
            found[question] = chosen
    return found


def taken(records: Records, machine: str) -> dict[str, str]:
    """The chosen candidates on a machine: from the user's records first, then from those of the package."""
    return {**shipped().get(machine, {}), **winners(records, machine)}


def decisions(target: Target, threads: int, records: Records | None = None) -> Decisions:
    """What is ``taken`` on this machine with so many threads; for a GPU that it lacks, what was judged without one. By
    formula where there is no such record, or where the user wants none. What the target itself brings is kept. Raises
    RecordsError."""
    if target.decisions is not FORMULA or config.NO_RECORDS.value:
        return target.decisions
    absent = target.grid is not None and device.missing(target.dialect, target.features)
    found = taken(records or Records(), machine(target, threads, STATIC if absent else None))
    return Decisions(found) if found else target.decisions


def shipped(path: Path = SHIPPED) -> Mapping[str, Mapping[str, str]]:
    """What came with the package: the chosen candidates by machine and question."""
    table = json.loads(path.read_text(encoding="utf-8"))
    return table["machines"] if table["language"] == LANGUAGE else {}


def save(path: Path, records: Records) -> int:
    """Writes what ``records`` would choose, where it is not the formula's, as a file of the package; how many."""
    chosen: dict[str, dict[str, str]] = {}
    for text in records.machines():
        brought = shipped().get(text, {})
        chosen[text] = {}
        for question, rows in sorted(records.latest(text).items()):
            default = next((m.candidate for m in rows if m.place == 0), None)
            found = winner(rows) or (default if default == brought.get(question) else None)
            if found is not None:
                chosen[text][question] = found
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"language": LANGUAGE, "machines": chosen}, indent=1) + "\n", encoding="utf-8")
    return sum(map(len, chosen.values()))
