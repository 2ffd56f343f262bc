"""What tuning measured, in SQLite: a row for each candidate of each question on each machine and in each run of tuning.

Nothing is decided when rows are written. ``winner`` decides from the rows of one run of one question, whenever they are
read, so that the same times always give the same schedules. The rows of a question are written together, as soon as it
has been measured; any number of processes may write and read.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from luminal.core import config
from luminal.core.decisions import FORMULA, LANGUAGE, Decisions, Recorded
from luminal.core.errors import LuminalError
from luminal.core.target import Target, processor
from luminal.timing import Timing

VERSION = 1
LEAST_GAIN = 0.03  # of the default's time, that a candidate has to be faster by
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


_WRITE = "BEGIN IMMEDIATE"


class RecordsError(LuminalError):
    """The file of what tuning measured cannot be used."""


@dataclass(frozen=True)
class Measured:
    """One candidate: its place among the candidates (0 is the default: what the package brings, else the first by
    estimate), the fastest and the median of its ``runs`` in
    seconds, and the ``fault`` that keeps it from being chosen, if any."""

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


def machine(target: Target, threads: int) -> str:
    """What of a machine times depend on, as text."""
    facts = {
        "processor": processor(), "target": target.name, "features": sorted(target.features),
        "registers": target.registers, "caches": [target.l1, target.l2, target.l3],
        "precision": target.precision.name, "threads": threads, "divided": target.threads,
    }  # fmt: skip
    return json.dumps(facts, sort_keys=True)


def default_path() -> Path:
    """The user's file."""
    return config.RECORDS.value or config.CACHE.value / "tuning.sqlite"


class Records:
    """A file of records, made with its first row. Methods raise RecordsError where it is damaged, or of another
    version."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()

    def begin(self) -> int:
        """The number of a new run of tuning."""
        with self._open(_WRITE) as database:
            number = database.execute("INSERT INTO run DEFAULT VALUES").lastrowid
        assert number is not None
        return number

    def add(self, machine: str, question: str, run: int, measured: Sequence[Measured]) -> None:
        """The candidates of one question, all at once."""
        rows = [(machine, question, run, m.place, m.candidate, m.best, m.median, m.runs, m.fault) for m in measured]
        with self._open(_WRITE) as database:
            database.executemany("INSERT OR REPLACE INTO measurement VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def latest(self, machine: str) -> dict[str, list[Measured]]:
        """What the latest run measured of each question."""
        if not self.path.exists():
            return {}
        query = """
            SELECT question, place, candidate, best, median, runs, fault FROM measurement AS m WHERE target = ? AND
            run = (SELECT max(run) FROM measurement WHERE target = m.target AND question = m.question)
            ORDER BY question, place, candidate
        """
        found: dict[str, list[Measured]] = {}
        with self._open() as database:
            for question, *row in database.execute(query, (machine,)):
                found.setdefault(question, []).append(Measured(*row))
        return found

    def machines(self) -> list[str]:
        """The machines that there are records of."""
        if not self.path.exists():
            return []
        with self._open() as database:
            return [text for (text,) in database.execute("SELECT DISTINCT target FROM measurement ORDER BY target")]

    @contextmanager
    def _open(self, begin: str = "BEGIN") -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
            try:
                if begin == _WRITE:
                    database.execute("PRAGMA journal_mode = WAL")
                database.execute(begin)
                (version,) = database.execute("PRAGMA user_version").fetchone()
                tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if version == 0 and tables == 0:
                    for statement in _SCHEMA.split(";"):
                        database.execute(statement)
                    database.execute(f"PRAGMA user_version = {VERSION}")
                elif version != VERSION:
                    raise RecordsError(self._unusable(f"it is of version {version}, expected {VERSION}"))
                yield database
                database.execute("COMMIT")
            finally:
                database.close()  # what was not committed is undone
        except (sqlite3.Error, OSError) as error:
            raise RecordsError(self._unusable(str(error))) from error

    def _unusable(self, reason: str) -> str:
        return (
            f"the records of tuning in {str(self.path)!r} cannot be used: {reason}; remove the file, name another in "
            f"{config.RECORDS.variable}, or do without with {config.NO_RECORDS.variable}=1"
        )


def winners(records: Records, machine: str) -> dict[str, str]:
    """The chosen candidate of each question: the default's too, where that is to stay."""
    found: dict[str, str] = {}
    for question, measured in records.latest(machine).items():
        default = next((m.candidate for m in measured if m.place == 0), None)
        chosen = winner(measured) or default
        if chosen is not None:
            found[question] = chosen
    return found


def taken(records: Records, machine: str) -> dict[str, str]:
    """The candidates that are taken on a machine: of what the user tuned, then of what came with the package."""
    return {**shipped().get(machine, {}), **winners(records, machine)}


def decisions(target: Target, threads: int, records: Records | None = None) -> Decisions:
    """What is ``taken`` on this machine with so many threads. By formula where nothing was measured, or where the user
    wants no records. What the target itself brings is kept. Raises RecordsError."""
    if target.grid is not None or target.decisions is not FORMULA or config.NO_RECORDS.value:
        return target.decisions
    found = taken(records or Records(), machine(target, threads))
    return Recorded(found) if found else target.decisions


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
