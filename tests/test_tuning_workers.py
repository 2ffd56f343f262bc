"""Measuring on the machines of a Ray cluster: here, two workers that are both this machine."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest

import luminal
from luminal.core import ir, types
from luminal.core import target as targets
from luminal.core.decisions import KINDS, Decisions, Trial
from luminal.core.decompose import contraction
from luminal.core.errors import InputError
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.tuning import confirm, records, search, workers
from luminal.tuning.bench import Compiled, Contender
from luminal.tuning.outcome import NO_FASTER, UNCONFIRMED, Outcome
from luminal.tuning.records import Measured, Records
from luminal.tuning.workers import Cluster, Facts, LostError, RemoteBench

WITHOUT = "measuring on other machines needs the package ray (the extra 'ray')"
# How long Ray waits before it takes a process to be lost that is only slow, on a machine that does much else. One that
# has ended is known to be lost at once.
PATIENT = {"RAY_health_check_timeout_ms": "300000", "RAY_worker_register_timeout_seconds": "600"}

T = TypeVar("T")


@pytest.fixture(autouse=True)
def with_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LUMINAL_NO_RECORDS")
    monkeypatch.setenv("LUMINAL_RECORDS", str(tmp_path / "records"))


class Machines:
    """A cluster of nodes that are all this machine; the first has no resource to measure with."""

    def __init__(self, records: Path) -> None:
        from ray.cluster_utils import Cluster as Nodes

        self.records = records  # of the workers
        head = {"num_cpus": 0, "include_dashboard": False}
        self.nodes = started(lambda: Nodes(initialize_head=True, head_node_args=head))
        self.workers = [self.add(), self.add()]

    @property
    def address(self) -> str:
        return str(self.nodes.address)

    def add(self) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("LUMINAL_NO_RECORDS", raising=False)
            patch.setenv("LUMINAL_RECORDS", str(self.records))
            return started(lambda: self.nodes.add_node(num_cpus=1, resources={workers.RESOURCE: 1}))

    def lose(self, number: int) -> None:
        """Kills all processes of a worker at once."""
        self.nodes.remove_node(self.workers.pop(number), allow_graceful=False)


def started(make: Callable[[], T]) -> T:
    """What ``make`` starts. Ray gives up a node whose helpers take long to start, as on a machine that does much else:
    that is tried again."""
    for left in reversed(range(6)):
        try:
            return make()
        except Exception as error:
            if not left or "timed out" not in str(error).lower():
                raise
    raise AssertionError


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(workers._BEYOND_LOOPBACK, "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))  # of the workers
        for name, text in PATIENT.items():
            patch.setenv(name, text)
        pytest.importorskip("ray", reason=WITHOUT)
        found = Machines(tmp_path_factory.mktemp("workers") / "records")
        yield found
        found.nodes.shutdown()


def several() -> Graph:
    """Products of several sizes, each with questions of its own."""
    given = ir.input_("x", (96, 64), types.f32)
    outputs = []
    for columns in (128, 256, 384):
        values = np.random.default_rng(columns).standard_normal((columns, 64)).astype(np.float32)
        outputs.append((f"y{columns}", contraction.linear(given, ir.constant(values), None)))
    return Graph("several", (given,), tuple(outputs))


def asked(graph: Graph) -> set[str]:
    """The questions that have several candidates."""
    trial = Trial(KINDS, 0, {})
    compile_graph(graph, replace(targets.parse("host", threads=1), decisions=trial))
    return {name for name, question in trial.questions.items() if len(question.candidates) > 1}


def rows() -> dict[str, list[Measured]]:
    return Records().latest(records.machine(targets.parse("host", threads=1), 1))


@pytest.fixture
def all_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every choice stays, however the whole model's times differ by chance: where one were rejected, the next search
    would ask what the default leads to instead."""
    monkeypatch.setattr(confirm, "faster", lambda found, other, least: True)


# ---- workers -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("all_confirmed")
def test_workers_measure_and_compiling_takes_what_they_found(machines: Machines) -> None:
    graph = several()
    (outcome,) = luminal.tune(graph, budget=math.inf, threads=1, workers=machines.address)
    assert outcome.new == len(outcome.answers) > 3 and not outcome.left and not outcome.more
    found = rows()
    # What is asked of a tile depends on the tile that was the fastest.
    assert {answer.question for answer in outcome.answers} == found.keys() and found.keys() & asked(graph)
    assert all(m.runs and m.fault in ("", NO_FASTER, UNCONFIRMED) for each in found.values() for m in each)
    module = luminal.compile(graph, threads=1)
    measured = {question for kernel in module.manifest["kernels"] for question in kernel.get("measured", {})}
    assert measured and measured <= found.keys()
    x = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    for y, (_, node) in zip(module(x), graph.outputs, strict=True):
        assert y.shape == node.shape
    # The workers have them too.
    assert Records(machines.records).latest(records.machine(targets.parse("host", threads=1), 1)) == found
    # It is this machine, so a search here finds everything known.
    again = luminal.tune(graph, budget=math.inf, threads=1)
    assert isinstance(again, Outcome) and again.known == outcome.new and not again.new


def busy(seconds: float, folder: str = "", others: int = 0) -> tuple[str, float, float]:
    """Where it ran, and when: for so many seconds, and until as many ``others`` have begun, which say so in
    ``folder``."""
    import ray

    started = time.monotonic()
    if folder:
        (Path(folder) / str(started)).touch()
    while others and len(list(Path(folder).iterdir())) <= others:
        time.sleep(0.05)
    time.sleep(seconds)
    return ray.get_runtime_context().get_node_id(), started, time.monotonic()


def test_one_measurement_runs_at_a_time_on_a_machine(machines: Machines, tmp_path: Path) -> None:
    """And machines work side by side: the first two wait for each other."""
    with Cluster(machines.address) as cluster:
        (group,) = cluster.groups("host")
        assert len(group.nodes) == 2
        waiting = [cluster.submit(group.nodes, busy, 0.2, str(tmp_path), 1) for _ in range(6)]
        found = [value for _, value in cluster.ended(waiting, group.nodes)]
    assert {node for node, *_ in found} == set(group.nodes)
    for node in group.nodes:
        spans = sorted((start, end) for at, start, end in found if at == node)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.usefixtures("all_confirmed")
def test_a_worker_that_is_lost_midway_costs_nothing_else(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, lost = several(), []
    ended = Cluster.ended

    def losing(self: Cluster, references: Sequence[Any], nodes: Sequence[str]) -> Iterator[tuple[Any, Any]]:
        for number, found in enumerate(ended(self, references, nodes)):
            if not lost and number == 0 and len(references) > 2:
                lost.append(len(references))
                machines.lose(0)
            yield found

    monkeypatch.setattr(Cluster, "ended", losing)
    (outcome,) = luminal.tune(graph, budget=math.inf, threads=1, workers=machines.address)
    machines.workers.append(machines.add())
    assert lost and not outcome.left and not outcome.more and outcome.new > 3
    assert {answer.question for answer in outcome.answers} == rows().keys()
    monkeypatch.setattr(Cluster, "ended", ended)
    # None is left to a search without workers.
    monkeypatch.setenv("LUMINAL_RECORDS", str(outcome.path))
    again = luminal.tune(graph, budget=math.inf, threads=1)
    assert isinstance(again, Outcome) and not again.new and not again.left


def test_workers_of_another_version_do_not_measure(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "VERSION", "0.0")
    with Cluster(machines.address) as cluster, pytest.raises(InputError, match=r"it has luminal .*, and this is 0\.0"):
        cluster.groups("host")


def test_where_all_are_lost_the_error_says_so(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last test of these machines."""
    monkeypatch.setattr(workers, "PATIENCE", 1.0)
    with Cluster(machines.address) as cluster:
        (group,) = cluster.groups("host")
        waiting = [cluster.submit(group.nodes, busy, 600.0) for _ in range(2)]
        machines.lose(0)
        machines.lose(0)
        with pytest.raises(LostError, match="all 2 machines are lost"):
            list(cluster.ended(waiting, group.nodes))
        with pytest.raises(InputError, match="no node has the resource 'luminal'"):
            cluster.groups("host")


LISTENERS = """
import os, sys
from pathlib import Path
from luminal.tuning.workers import Cluster

def listening():
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[9]: row[1].rpartition(":")[0] for row in rows if row[3] == "0A"}

def sockets(pid):
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found = os.readlink(fd)
        except OSError:
            continue
        if found.startswith("socket:["):
            yield found[8:-1]

before = listening()
with Cluster("local") as cluster:
    assert len(cluster.groups("host")) == 1
    new = {inode: address for inode, address in listening().items() if inode not in before}
    own = {os.getpid()}
    for _ in range(8):
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(path.read_text().rpartition(")")[2].split()[1]) in own:
                    own.add(int(path.parent.name))
            except OSError:
                pass
    mine = {inode for pid in own if Path(f"/proc/{pid}").exists() for inode in sockets(pid)}
    print(sorted({address for inode, address in new.items() if inode in mine}))
"""


def test_nothing_listens_beyond_the_loopback() -> None:
    pytest.importorskip("ray", reason=WITHOUT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment.pop(workers._BEYOND_LOOPBACK, None)

    def listening() -> str:
        command = [sys.executable, "-c", LISTENERS]
        made = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        if made.returncode:
            raise ChildProcessError(made.stderr)
        return made.stdout.splitlines()[-1]

    found = eval(started(listening))
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert found and set(found) <= loopback, found


# ---- without a cluster ---------------------------------------------------------------------------------------------


class Told(Cluster):
    """A cluster whose workers answer as they are told."""

    def __init__(self, answers: Mapping[str, Facts]) -> None:
        self.address = "told"
        self.answers = answers
        self.ray = SimpleNamespace(get=lambda found: found, exceptions=SimpleNamespace(RayError=RuntimeError))

    @property
    def nodes(self) -> list[str]:
        return list(self.answers)

    def submit(self, nodes: Sequence[str], work: Any, *arguments: Any) -> Any:
        return self.answers[nodes[0]]


def test_workers_are_told_apart_by_target_and_machine() -> None:
    facts = Facts(luminal.__version__, targets.AVX2, "", "processor A", 4)
    cluster = Told({
        "a": facts, "b": replace(facts, processor="processor B"), "c": facts, "d": replace(facts, cpus=8),
        "e": replace(facts, target=replace(targets.AVX2, l2=1 << 20)), "f": replace(facts, obstacle="it is too old"),
    })  # fmt: skip
    groups = cluster.groups("host")
    assert sorted(group.nodes for group in groups) == [("a", "c"), ("b",), ("d",), ("e",)]
    keys = {RemoteBench(cluster, group, 2).machine for group in groups}
    assert len(keys) == 3  # the number of CPUs counts where the number of threads follows from it
    with pytest.raises(InputError, match="node f: it is too old"):
        Told({"f": cluster.answers["f"]}).groups("host")


def test_a_measurement_that_is_lost_is_left_to_the_next_search(monkeypatch: pytest.MonkeyPatch) -> None:
    class Losing(RemoteBench):
        def each(
            self, compiled: Compiled, questions: Mapping[str, Sequence[Contender]], seconds: float
        ) -> Iterator[tuple[str, list[Measured]]]:
            for question, contenders in list(questions.items())[1:]:
                yield question, [Measured(c.place, str(c.candidate), 1.0, 1.0, 9) for c in contenders]

        def share(self, rows: Mapping[str, Sequence[Measured]]) -> None:
            """There is no machine to share with."""

    target = targets.parse("host", threads=1)
    group = workers.Group(target, targets.processor(), 1, ("a",))
    bench = Losing(Told({}), group, 1)
    outcome = search.tune("m", {"main": several()}, target, 1, 1e9, Records(), bench=bench)
    assert outcome.left and outcome.new and not set(rows()) - asked(several())


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(workers._BEYOND_LOOPBACK, "0")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs the package ray.*install luminal with the extra 'ray'"):
        luminal.tune(several(), budget=5, workers="127.0.0.1:6379")


def test_choices_travel_to_other_processes() -> None:
    target = targets.parse("host")
    assert pickle.loads(pickle.dumps(target)) == target
    assert pickle.loads(pickle.dumps(target)).decisions is target.decisions
    assert pickle.loads(pickle.dumps(Decisions({"q": "a"}))).answers == {"q": "a"}
