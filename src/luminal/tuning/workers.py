"""Measuring on the machines of a Ray cluster: ``luminal tune --workers ADDRESS``.

A machine that is to measure has the resource ``luminal`` once, and everything that runs there takes it: one measurement
runs at a time, and none disturbs another. Everything is compiled and decided here. A worker is handed a library and
what is to be run of it, in a process of its own there, and hands back times and values. So machines of one kind share
the questions of a search, and what is lost with a machine is the measurement that it was at: Ray gives that to another.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from luminal.core import config, device
from luminal.core import target as targets
from luminal.core.errors import InputError, LuminalError
from luminal.core.target import Target
from luminal.timing import Timing
from luminal.tuning import records
from luminal.tuning.bench import Bench, Compiled, Contender, Prepared, runs
from luminal.tuning.racer import HANG, Racer, Ran
from luminal.tuning.records import Measured, Records
from luminal.tuning.subject import Race
from luminal.version import VERSION

RESOURCE = "luminal"  # of which a machine that measures has one
LOCAL = "local"  # the address of a cluster of this machine alone, which is started and ended with the search
RETRIES = 3  # how often a measurement is begun anew after its machine was lost
PATIENCE = 5.0  # seconds between looks at whether machines are left
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Ray's switch for systems where nothing may listen beyond the loopback; without it, even a cluster at 127.0.0.1 takes
# the machine's own address, and is open to its network.
_BEYOND_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class LostError(LuminalError):
    """No machine is left that could measure."""


# ---- what runs on a worker -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """A worker: its version of luminal, the target that is measured on it, why it cannot run code for that (empty if it
    can), its processor and its CPUs."""

    version: str
    target: Target
    obstacle: str
    processor: str
    cpus: int


def facts(name: str | Target) -> Facts:
    """This machine, to measure for the target of that name."""
    target = targets.parse(name)
    return Facts(VERSION, target, targets.obstacle(target), targets.processor(), device.cpus())


def raced(library: bytes, race: Race, hang: float) -> Ran:
    """A race on this machine, of the kernels of ``library``."""
    with tempfile.TemporaryDirectory(prefix="luminal-") as folder, Racer(hang) as racer:
        path = Path(folder) / "libtimed.so"
        path.write_bytes(library)
        return racer.run(replace(race, library=str(path)))


def ran(entry: str, inputs: Mapping[str, NDArray[Any]], threads: int, *artefacts: Mapping[str, bytes]) -> list[Timing]:
    """Runs of models on this machine: each the files of a library, by name."""
    with tempfile.TemporaryDirectory(prefix="luminal-") as name:
        folders = [Path(name) / str(number) for number in range(len(artefacts))]
        for folder, files in zip(folders, artefacts, strict=True):
            folder.mkdir()
            for file, content in files.items():
                (folder / file).write_bytes(content)
        return runs(folders, entry, inputs, threads)


def kept(machine: str, rows: Mapping[str, Sequence[Measured]]) -> None:
    """Records the rows of questions on this machine too, where they differ from what it has."""
    if config.NO_RECORDS.value:
        return
    file = Records()
    latest = file.latest(machine)
    new = {question: each for question, each in rows.items() if latest.get(question) != each}
    run = file.begin() if new else 0
    for question, each in new.items():
        file.add(machine, question, run, each)


# ---- the cluster ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Workers on which times are the same: their target, processor and CPUs, and their nodes in the cluster."""

    target: Target
    processor: str
    cpus: int
    nodes: tuple[str, ...]


class Cluster:
    """A connection to the Ray cluster at ``address``, or one that is started, where that is ``local``. Use it as a
    context manager. A connection that the process has already is taken, and left as it is.

    Raises InputError where Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        # Ray reads its switches when it is imported.
        if address == LOCAL or address.rpartition(":")[0].strip("[]") in _LOOPBACK:
            os.environ.setdefault(_BEYOND_LOOPBACK, "0")
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise InputError(
                f"workers: measuring on other machines needs the package ray, which cannot be imported ({error}); "
                "install luminal with the extra 'ray'"
            ) from error
        self.is_own = False

    def __enter__(self) -> Cluster:
        if not self.ray.is_initialized():
            quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False, "include_dashboard": False}
            if self.address == LOCAL:
                quiet |= {"resources": {RESOURCE: 1}, "num_cpus": 1}
            else:
                del quiet["include_dashboard"]
            try:
                self.ray.init(address=self.address, **quiet)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise InputError(
                    f"workers: expected the address of a Ray cluster, or {LOCAL}, found {self.address!r}: {error}"
                ) from error
            self.is_own = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_own:
            self.ray.shutdown()

    @property
    def nodes(self) -> list[str]:
        """The nodes that are alive and may measure."""
        return sorted(node["NodeID"] for node in self.ray.nodes() if node["Alive"] and RESOURCE in node["Resources"])

    def groups(self, target: str | Target) -> list[Group]:
        """The workers of the cluster, by kind. Raises InputError where none of them can measure for the target."""
        found: dict[str, Group] = {}
        refused: list[str] = []
        asked = {node: self.submit([node], facts, target) for node in self.nodes}
        for node, answer in asked.items():
            try:
                each: Facts = self.ray.get(answer)
            except self.ray.exceptions.RayError as error:
                refused.append(f"node {node[:8]}: {str(error).splitlines()[-1]}")
                continue
            if each.version != VERSION or each.obstacle:
                other = f"it has luminal {each.version}, and this is {VERSION}" if each.version != VERSION else ""
                refused.append(f"node {node[:8]}: {other or each.obstacle}")
                continue
            key = f"{each.processor} {each.cpus} {records.machine(each.target, each.cpus, each.processor)}"
            one = found.get(key, Group(replace(each.target), each.processor, each.cpus, ()))
            found[key] = replace(one, nodes=(*one.nodes, node))
        if not found:
            reasons = "; ".join(refused) or f"no node has the resource {RESOURCE!r}"
            raise InputError(
                f"workers: expected machines at {self.address!r} that can measure, started by ray start with "
                f"--resources '{{\"{RESOURCE}\": 1}}'; found none: {reasons}"
            )
        return [found[key] for key in sorted(found)]

    def submit(self, nodes: Sequence[str], work: Any, *arguments: Any) -> Any:
        """A reference to what ``work`` will return, which runs on one of ``nodes`` as soon as that measures nothing
        else."""
        options = {
            "num_cpus": 0, "resources": {RESOURCE: 1}, "max_retries": RETRIES,
            "label_selector": {"ray.io/node-id": f"in({','.join(nodes)})"},
        }  # fmt: skip
        return self.ray.remote(**options)(work).remote(*arguments)

    def ended(self, references: Sequence[Any], nodes: Sequence[str]) -> Iterator[tuple[Any, Any]]:
        """Each reference with its value, as they come; without those whose machines were lost again and again. Raises
        LostError where none of ``nodes`` is left."""
        errors = self.ray.exceptions
        lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.TaskUnschedulableError)
        open_ = list(references)
        while open_:
            done, open_ = self.ray.wait(open_, timeout=PATIENCE)
            found: list[tuple[Any, Any]] = []
            for reference in done:
                with suppress(*lost):
                    found.append((reference, self.ray.get(reference)))
            yield from found
            if not found and not set(nodes) & set(self.nodes):
                raise LostError(
                    f"workers: all {len(nodes)} machines are lost; what they measured is recorded, and the same "
                    "command goes on there"
                )


class RemoteBench(Bench):
    """Compiles here, and measures on the workers of a ``group``."""

    def __init__(self, cluster: Cluster, group: Group, threads: int, hang: float = HANG) -> None:
        super().__init__(group.target, threads, hang)
        self.cluster, self.group = cluster, group
        self.width = len(group.nodes)

    @property
    def machine(self) -> str:
        return records.machine(self.target, self.threads, self.group.processor)

    def check(self) -> None:
        """The workers were asked. Raises InputError where the target is a GPU, of which they say nothing."""
        if self.target.grid is not None:
            raise InputError(f"workers: expected a CPU as the target, found {self.target.name}: do without workers")

    def each(
        self, compiled: Compiled, questions: Mapping[str, Sequence[Contender]], seconds: float
    ) -> Iterator[tuple[str, list[Measured]]]:
        library = self.cluster.ray.put(compiled.library.read_bytes())
        waiting: dict[Any, tuple[str, Prepared]] = {}
        for question, contenders in questions.items():
            prepared = self.prepared(compiled, contenders, seconds)
            reference = self.cluster.submit(self.group.nodes, raced, library, prepared.race, self.racer.hang)
            waiting[reference] = question, prepared
        for reference, found in self.cluster.ended(list(waiting), self.group.nodes):
            question, prepared = waiting[reference]
            yield question, self.judged(prepared, found)

    def runs(self, folders: Sequence[Path], entry: str, inputs: Mapping[str, NDArray[Any]]) -> list[Timing]:
        artefacts = [
            self.cluster.ray.put({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
            for folder in folders
        ]
        reference = self.cluster.submit(self.group.nodes, ran, entry, inputs, self.threads, *artefacts)
        for _, timings in self.cluster.ended([reference], self.group.nodes):
            return list(timings)
        raise LostError(
            "workers: a machine was lost whenever the model as a whole was run; the same command goes on there"
        )

    def share(self, rows: Mapping[str, Sequence[Measured]]) -> None:
        for node in sorted(set(self.group.nodes) & set(self.cluster.nodes)):
            with suppress(LostError):
                list(self.cluster.ended([self.cluster.submit([node], kept, self.machine, rows)], [node]))
