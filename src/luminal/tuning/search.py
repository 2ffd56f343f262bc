"""Tuning: the candidates of every question that a model asks, measured a few at a time while the budget lasts."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from luminal.comparison import inputs as drawing
from luminal.core import config
from luminal.core.decisions import KINDS, Decisions, Kind, Trial
from luminal.core.errors import InputError
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.cost import kernel as cost
from luminal.core.schedule.program.ir import Launch, Program
from luminal.core.target import Target, check_supported
from luminal.progress import Progress
from luminal.tuning import confirm, subject
from luminal.tuning import records as recording
from luminal.tuning.bench import Bench, Contender, Part
from luminal.tuning.outcome import NO_FASTER, UNCONFIRMED, Answer, Outcome
from luminal.tuning.records import Measured, Records

QUICK = 60.0  # seconds of a quick search

BEAM = 4  # candidates of a question, the first by estimate
BATCH = 16  # kernels that are compiled together
FIRST = 0.6  # of the time that is left, for those kinds that others follow
SECONDS = 0.4  # of measuring, for a question
CONFIRMING = 0.25  # of the time, for what a compiler is still at and for running the model as a whole
SHARE = 0.003  # of a model's estimated time: what takes less is not worth measuring


def tune(
    name: str,
    graphs: Mapping[str, Graph],
    target: Target,
    threads: int,
    budget: float,
    records: Records | None = None,
    progress: Progress = lambda stage, fraction: None,
    again: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measures candidates for the kernels of ``graphs`` for at most ``budget`` seconds, a little more where a compiler
    is at work, and records them; an infinite budget lasts until all are measured. What was measured before is not
    measured ``again`` unless that is asked for.

    Questions that take the most time come first. Whatever was measured is recorded at once: interrupted, a search loses
    the question that it is at. In the end the model is run as a whole, with and without what was chosen
    (``confirm.timings``), by this search or by an earlier one that did not come so far; until then, and where it is not
    faster with it by more than the noise, the defaults stay.

    Raises InputError where the target is a GPU, or the user wants no records; TargetError where this machine cannot run
    its code, RecordsError where the records cannot be used.
    """
    if target.grid is not None:
        raise InputError(f"schedules are not tuned for GPUs: expected a CPU as the target, found {target.name}")
    check_supported(target)
    if config.NO_RECORDS.value:
        raise InputError(
            f"schedules are not tuned with {config.NO_RECORDS.variable}=1, which chooses them by formula whatever was "
            "measured: unset it, or do without tuning"
        )
    records = records or Records()
    end = clock() + (1 - CONFIRMING) * budget
    search = _Search(name, graphs, target, threads, records, clock, end, budget, progress)
    with Bench(target, threads) as bench:
        for kind in KINDS:
            search.settle(kind, bench, again)
    seconds = search.confirm(threads)
    return Outcome(
        tuple(search.answers), search.known, search.left, search.more, seconds, search.new, search.changed(), name,
        subject.sizes({dim: None for graph in graphs.values() for dim in graph.dims}),
        drawing.sizes(next(iter(graphs.values()))), records.path,
    )  # fmt: skip


class _Search:
    def __init__(
        self,
        name: str,
        graphs: Mapping[str, Graph],
        target: Target,
        threads: int,
        records: Records,
        clock: Callable[[], float],
        end: float,
        budget: float,
        progress: Progress,
    ) -> None:
        self.name, self.graphs, self.target, self.records = name, graphs, target, records
        self.clock, self.end, self.budget, self.progress = clock, end, budget, progress
        self.last = end + CONFIRMING * budget  # when running the model is to be done too
        self.machine = recording.machine(target, threads)
        self.defaults = recording.shipped().get(self.machine, {})
        self.before = recording.taken(records, self.machine)
        self.run = records.begin()
        self.answers: list[Answer] = []
        self.first: dict[str, str] = {}  # of the questions that it came to
        self.known = self.left = self.new = 0
        self.more = False
        self.each = 0.0  # seconds that a question took in the batch before

    def settle(self, kind: Kind, bench: Bench, again: bool) -> None:
        """Measures the questions of a kind; those of others are as was measured so far."""
        if self.clock() >= self.end:
            self.more = True
            return
        latest = self.records.latest(self.machine)
        questions = self._questions(kind, self._winners())
        self.first |= {question: str(candidates[0].candidate) for question, candidates in questions.items()}
        if not again:
            known = {q for q, candidates in questions.items() if _measured(candidates, latest.get(q, ()))}
            self.known += len(known)
            for question in questions:
                if question in known and any(m.fault == UNCONFIRMED for m in latest[question]):
                    self._answer(question, questions[question], _open(latest[question]))
            questions = {question: found for question, found in questions.items() if question not in known}
        done, now = 0, self.clock()
        # The first kind leaves the later ones their time.
        end = self.end if kind == KINDS[-1] else now + FIRST * (self.end - now)
        for batch in _batches(questions):
            started = self.clock()
            batch = batch[: int(min((end - started) / self.each, len(batch)))] if self.each else batch
            if started >= end or not batch:
                break
            kernels = {p.kernel.nest: p.kernel for q in batch for c in questions[q] for p in c.parts}
            compiled = bench.compile(list(kernels.values()))
            for question in batch:
                measured = bench.measure(compiled, questions[question], SECONDS)
                self._answer(question, questions[question], measured)
                changed = self.answers[-1].chosen.place > 0
                self.records.add(
                    self.machine, question, self.run, _with(UNCONFIRMED, measured) if changed else measured
                )
                done += 1
                self.progress("tune", self._spent())
            self.each = (self.clock() - started) / len(batch)
        self.new += done
        self.left += len(questions) - done

    def changed(self) -> int:
        """For how many questions, of those that it came to, something else than the default is taken."""
        winners = recording.winners(self.records, self.machine)
        return sum(winners.get(question, default) != default for question, default in self.first.items())

    def _spent(self) -> float:
        """The fraction of the budget that is over: none where that has no end."""
        return 0.0 if math.isinf(self.budget) else min(0.99, 1 - max(0.0, self.end - self.clock()) / self.budget)

    def _answer(self, question: str, candidates: Sequence[Contender], measured: Sequence[Measured]) -> None:
        self.answers.append(Answer(question, candidates[0].parts[0].kernel.origins, tuple(measured)))

    def _winners(self) -> dict[str, str]:
        """What is chosen, were this search confirmed."""
        return {
            **recording.taken(self.records, self.machine),
            **{answer.question: answer.chosen.candidate for answer in self.answers},
        }

    def confirm(self, threads: int) -> tuple[float, float] | None:
        """Runs the model by default and with all that this search chose; records that it is to stay, where the model is
        faster.

        Where it is not, each half is tried by itself, that with the larger leads first, with what was found to make the
        model faster so far, and so on until the ones to blame are found. What there is no time for, or what changes
        nothing without others, stays unconfirmed: a later search takes it as its own.
        """
        chosen = sorted((a for a in self.answers if a.chosen.place), key=lambda a: (-a.lead, a.question))
        if not chosen:
            return None
        winners = {**self.before, **{a.question: a.measured[0].candidate for a in self.answers}}
        program = self._compiled(winners)
        verdicts = dict.fromkeys((a.question for a in chosen), UNCONFIRMED)
        seconds, longest = None, 0.0
        groups = [chosen]
        while groups and (seconds is None or self.clock() + longest <= self.last):
            started, group = self.clock(), groups.pop()
            together = {**winners, **{a.question: a.chosen.candidate for a in group}}
            other = self._compiled(together)
            if [k.nest for k in other.kernels] == [k.nest for k in program.kernels]:
                continue
            without, found = confirm.timings([program, other], self.graphs, self.target, threads)
            seconds = seconds or (without.median, found.median)
            longest = max(longest, self.clock() - started)
            if recording.faster(found, without, confirm.LEAST_GAIN):
                winners, program = together, other
                verdicts |= dict.fromkeys((a.question for a in group), "")
            elif len(group) > 1:
                half = (len(group) + 1) // 2
                groups += [group[half:], group[:half]]
            else:
                verdicts[group[0].question] = NO_FASTER
        run = self.records.begin()
        for number, answer in enumerate(self.answers):
            rows = _with(verdicts.get(answer.question, ""), answer.measured)
            self.records.add(self.machine, answer.question, run, rows)
            self.answers[number] = replace(answer, measured=rows)
        return seconds

    def _compiled(self, winners: Mapping[str, str]) -> Program:
        return compile_graphs(self.name, self.graphs, replace(self.target, decisions=Decisions(winners)))

    def _questions(self, kind: Kind, winners: Mapping[str, str]) -> dict[str, list[Contender]]:
        """The candidates of each question that has several, the questions that take the most time first."""
        found: dict[str, list[Contender]] = {}
        times: Counter[str] = Counter()
        beam = BEAM
        number = 0
        while number < beam:
            started = self.clock()
            trial = Trial((kind,), number, winners, self.defaults)
            program = compile_graphs(self.name, self.graphs, replace(self.target, decisions=trial))
            for question, parts in _asking(program, kind).items():
                asked = trial.questions[question].candidates
                if number < len(asked):
                    found.setdefault(question, []).append(Contender(number, asked[number], program, parts))
                if number == 0:
                    times[question] = int(sum(cost.cycles(p.kernel.nest, self.target.costs) * p.times for p in parts))
            for question, reason in trial.refusals.items():
                if question in found:
                    refused = trial.questions[question].candidates[number]
                    found[question].append(Contender(number, refused, program, (), f"it is not legal: {reason}"))
            if number == 0:
                beam = min(beam, max((len(q.candidates) for q in trial.questions.values()), default=0))
                if (self.clock() - started) * beam > self.budget / 4:
                    beam = min(beam, 2)
            number += 1
        least = SHARE * sum(times.values())
        distinct = {question: _distinct(found[question]) for question, time in times.most_common() if time >= least}
        return {q: candidates for q, candidates in distinct.items() if len(candidates) > 1 and not candidates[0].place}


def _measured(candidates: Iterable[Contender], rows: Iterable[Measured]) -> bool:
    """Whether rows tell of all candidates: a search with a small budget measures fewer of them."""
    return {str(candidate.candidate) for candidate in candidates} <= {row.candidate for row in rows}


def _with(fault: str, measured: Iterable[Measured]) -> tuple[Measured, ...]:
    """Rows of which none but the default may be chosen, for that reason, if it is one."""
    return tuple(replace(m, fault=m.fault or fault) if m.place else m for m in measured)


def _open(measured: Iterable[Measured]) -> tuple[Measured, ...]:
    """Rows as they were before it was noted that nothing has confirmed them."""
    return tuple(replace(m, fault="") if m.fault == UNCONFIRMED else m for m in measured)


def _asking(program: Program, kind: Kind) -> dict[str, tuple[Part, ...]]:
    """For each question of that kind, the kernels of ``program`` that it decides on, with their launches."""
    launches: dict[int, list[Launch]] = {}
    for entry in program.entries:
        for launch in entry.launches:
            launches.setdefault(launch.kernel, []).append(launch)
    found: dict[str, list[Part]] = {}
    for number, kernel in enumerate(program.kernels):
        can_run = kernel.scheduled.serial is not None and not any(array.dtype.is_text for array in kernel.nest.arrays)
        for asked in kernel.scheduled.asked if can_run else ():
            if asked.question.kind == kind and number in launches:
                part = Part(kernel, launches[number][0], len(launches[number]))
                found.setdefault(asked.question.name, []).append(part)
    return {question: tuple(parts) for question, parts in found.items()}


def _distinct(candidates: Iterable[Contender]) -> list[Contender]:
    """Those whose kernels no earlier one has."""
    seen: dict[tuple[object, ...], Contender] = {}
    for candidate in candidates:
        seen.setdefault((candidate.fault, *(part.kernel.nest for part in candidate.parts)), candidate)
    return list(seen.values())


def _batches(questions: Mapping[str, Sequence[Contender]]) -> Iterator[list[str]]:
    """Questions in their order, as many together as have a batch of kernels."""
    batch: list[str] = []
    for question in questions:
        batch.append(question)
        if sum(len(candidate.parts) for q in batch for candidate in questions[q]) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
