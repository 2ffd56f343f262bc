"""Tuning: the candidates of every question that a model asks, measured a few at a time while the budget lasts."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from luminal.comparison import inputs as drawing
from luminal.core import config
from luminal.core.decisions import KINDS, Kind, Trial
from luminal.core.errors import InputError
from luminal.core.ir import Graph
from luminal.core.schedule.cost import kernel as cost
from luminal.core.schedule.program.ir import Launch, Program
from luminal.core.target import Target
from luminal.progress import Progress
from luminal.tuning import confirm, devices, forms, subject
from luminal.tuning import records as recording
from luminal.tuning.bench import Bench, Contender, Part
from luminal.tuning.outcome import UNCONFIRMED, Answer, Outcome
from luminal.tuning.records import Measured, Records

QUICK = 60.0  # seconds of a quick search

BATCH = 16  # kernels that are compiled together
FIRST = 0.6  # part of the time left that a kind of questions may take while other kinds follow
SECONDS = 0.4  # time to measure a question
CONFIRMING = 0.25  # part of the time kept for a compilation still running, and for running the whole model
SHARE = 0.003  # kernels below this part of a model's estimated time are not measured


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
    bench: Bench | None = None,
) -> Outcome:
    """Measures candidates for the kernels of ``graphs`` for at most ``budget`` seconds, a little more where a compiler
    is at work, and records them; an infinite budget lasts until all are measured. What was measured before is not
    measured ``again`` unless that is asked for.

    Questions that take the most time come first. Whatever was measured is recorded at once: interrupted, a search loses
    the question that it is at. In the end the model is run as a whole, with and without what was chosen
    (``confirm``), by this search or by an earlier one that did not come so far; until then, and where it is not faster
    with it by more than the noise, the defaults stay. ``bench`` measures, this machine's if none is given.

    Raises InputError where the user wants no records; TargetError where this machine cannot run the target's code,
    RecordsError where the records cannot be used.
    """
    bench = bench or devices.bench(target, threads)
    bench.check()
    if config.NO_RECORDS.value:
        raise InputError(
            f"schedules are not tuned with {config.NO_RECORDS.variable}=1, which chooses them by formula whatever was "
            "measured: unset it, or do without tuning"
        )
    model = confirm.Model(name, graphs, target, threads)
    with bench:
        search = _Search(model, bench, budget, records or Records(), progress, clock)
        for kind in KINDS:
            search.settle(kind, again)
        outcome = search.outcome(search.confirmed())
        bench.share(search.records.latest(search.machine))
        return outcome


@dataclass
class _Search:
    """The state of a search on a model: its results so far, and when it has to end."""

    model: confirm.Model
    bench: Bench
    budget: float
    records: Records
    progress: Progress
    clock: Callable[[], float]
    answers: list[Answer] = field(default_factory=list)
    first: dict[str, str] = field(default_factory=dict)  # the defaults of the questions that it came to
    known: int = 0
    left: int = 0
    new: int = 0
    more: bool = False
    each: float = 0.0  # seconds that a question took in the batch before

    def __post_init__(self) -> None:
        self.end = self.clock() + (1 - CONFIRMING) * self.budget
        self.machine = self.bench.machine
        self.defaults = recording.shipped().get(self.machine, {})
        self.before = recording.taken(self.records, self.machine)
        self.run = self.records.begin()

    def settle(self, kind: Kind, again: bool) -> None:
        """Measures the questions of a kind; questions of other kinds are answered from the measurements so far."""
        if self.clock() >= self.end:
            self.more = True
            return
        latest = self.records.latest(self.machine)
        questions = self._questions(kind)
        self.first |= {question: str(contenders[0].candidate) for question, contenders in questions.items()}
        for question, contenders in [] if again else list(questions.items()):
            rows = latest.get(question, [])
            if {str(contender.candidate) for contender in contenders} <= {row.candidate for row in rows}:
                # All were measured: a search with a small budget measures fewer of them.
                self.known += 1
                del questions[question]
                if any(row.fault == UNCONFIRMED for row in rows):
                    self._answer(question, contenders, _open(rows))
        if not questions:
            return
        done, now = 0, self.clock()
        # An earlier kind leaves the later ones their time.
        end = self.end if kind == KINDS[-1] else now + FIRST * (self.end - now)
        for batch in _batches(questions, BATCH * self.bench.width):
            started = self.clock()
            batch = batch[: int(min((end - started) / self.each, len(batch)))] if self.each else batch
            if started >= end or not batch:
                break
            kernels = {p.kernel.nest: p.kernel for q in batch for c in questions[q] for p in c.parts}
            compiled = self.bench.compile(list(kernels.values()))
            for question, measured in self.bench.each(compiled, {q: questions[q] for q in batch}, SECONDS):
                answer = self._answer(question, questions[question], measured)
                noted = _with(UNCONFIRMED if answer.chosen.place else "", measured)
                self.records.add(self.machine, question, self.run, noted)
                done += 1
                self.progress("tune", self._spent())
            self.each = (self.clock() - started) / len(batch)
        self.new += done
        self.left += len(questions) - done

    def confirmed(self) -> tuple[float, float] | None:
        """Runs the model with the defaults and with all that this search chose, and records which choices stay. A later
        search confirms the rest. Returns the seconds of both runs, where there is a difference."""
        chosen = [answer for answer in self.answers if answer.chosen.place]
        if not chosen:
            return None
        standing = {**self.before, **{a.question: a.measured[0].candidate for a in self.answers}}
        last = self.end + CONFIRMING * self.budget
        verdicts, seconds = confirm.confirm(self.model, standing, chosen, last, self.clock, self.bench)
        run = self.records.begin()
        for number, answer in enumerate(self.answers):
            rows = _with(verdicts.get(answer.question, ""), answer.measured)
            self.records.add(self.machine, answer.question, run, rows)
            self.answers[number] = replace(answer, measured=rows)
        return seconds

    def _measurable(self, found: Mapping[str, list[Contender]]) -> dict[str, list[Contender]]:
        """The questions all of whose kernels the bench can measure by themselves."""
        measures = self.bench.measures
        return {q: each for q, each in found.items() if all(measures(part) for c in each for part in c.parts)}

    def outcome(self, seconds: tuple[float, float] | None) -> Outcome:
        """All that was found; ``seconds`` are those of the runs that confirm it."""
        winners = recording.winners(self.records, self.machine)
        changed = sum(winners.get(question, default) != default for question, default in self.first.items())
        graphs = self.model.graphs
        return Outcome(
            tuple(self.answers), self.known, self.left, self.more, seconds, self.new, changed, self.model.name,
            subject.sizes({dim: None for graph in graphs.values() for dim in graph.dims}),
            drawing.sizes(next(iter(graphs.values()))), self.records.path,
            self.bench.how,
        )  # fmt: skip

    def _spent(self) -> float:
        """The fraction of the budget that is spent; 0 where the budget is infinite."""
        return 0.0 if math.isinf(self.budget) else min(0.99, 1 - max(0.0, self.end - self.clock()) / self.budget)

    def _answer(self, question: str, contenders: Sequence[Contender], measured: Iterable[Measured]) -> Answer:
        answer = Answer(question, contenders[0].parts[0].kernel.origins, tuple(measured))
        self.answers.append(answer)
        return answer

    def _questions(self, kind: Kind) -> dict[str, list[Contender]]:
        """The candidates of each question of ``kind`` that has several, the questions that take the most time first;
        other kinds are answered with the choices so far."""
        chosen = {answer.question: answer.chosen.candidate for answer in self.answers}
        answers = {**recording.taken(self.records, self.machine), **chosen}
        if kind == "form":
            return self._forms(answers)
        found: dict[str, list[Contender]] = {}
        times: Counter[str] = Counter()
        number, beam = 0, self.bench.beam
        while number < beam:
            started = self.clock()
            trial = Trial((kind,), number, answers, self.defaults)
            program = self.model.compiled(trial)
            for question, parts in _asking(program, kind).items():
                candidates = trial.questions[question].candidates
                if number < len(candidates):
                    found.setdefault(question, []).append(Contender(number, candidates[number], program, parts))
                if number == 0:
                    times[question] = _time(parts, self.model.target)
            for question, reason in trial.refusals.items():
                candidates = trial.questions[question].candidates if question in found else ()
                if number < len(candidates):
                    fault = f"it is not legal: {reason}"
                    found[question].append(Contender(number, candidates[number], program, (), fault))
            if number == 0:
                beam = min(beam, max((len(q.candidates) for q in trial.questions.values()), default=0))
                if (self.clock() - started) * beam > self.budget / 4:
                    beam = min(beam, 2)
            number += 1
        return _worthwhile(self._measurable(found), times)

    def _forms(self, answers: Mapping[str, str]) -> dict[str, list[Contender]]:
        """The forms of each region of which there are several."""
        listing = forms.Listing(answers, self.defaults)
        self.model.compiled(listing)
        target = self.model.target
        found = {
            question: forms.contenders(asked.candidates[: self.bench.beam], listing.times[question], target, answers)
            for question, asked in listing.questions.items()
        }
        found = self._measurable(found)
        return _worthwhile(found, Counter({q: _time(each[0].parts, target) for q, each in found.items() if each}))


def _worthwhile(found: Mapping[str, Sequence[Contender]], times: Counter[str]) -> dict[str, list[Contender]]:
    """The questions of which more than one contender differs, without those of little time; the longest first."""
    least = SHARE * sum(times.values())
    distinct = {question: _distinct(found[question]) for question, time in times.most_common() if time >= least}
    return {q: contenders for q, contenders in distinct.items() if len(contenders) > 1 and not contenders[0].place}


def _time(parts: Sequence[Part], target: Target) -> int:
    """Cycles of all launches of ``parts`` in a run of the model."""
    return int(sum(cost.cycles(part.kernel.nest, target.costs) * part.times for part in parts))


def _with(fault: str, measured: Iterable[Measured]) -> tuple[Measured, ...]:
    """Rows marked with ``fault``, unless it is empty, so that the default alone can be chosen."""
    return tuple(replace(m, fault=m.fault or fault) if m.place else m for m in measured)


def _open(measured: Iterable[Measured]) -> tuple[Measured, ...]:
    """Rows without the mark that they are unconfirmed."""
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


def _distinct(contenders: Iterable[Contender]) -> list[Contender]:
    """``contenders`` without those whose kernels equal those of an earlier one."""
    seen: dict[tuple[object, ...], Contender] = {}
    for contender in contenders:
        seen.setdefault((contender.fault, *(part.kernel.nest for part in contender.parts)), contender)
    return list(seen.values())


def _batches(questions: Mapping[str, Sequence[Contender]], size: int) -> Iterator[list[str]]:
    """Questions in order, grouped so that each group has about ``size`` kernels."""
    batch: list[str] = []
    for question in questions:
        batch.append(question)
        if sum(len(contender.parts) for q in batch for contender in questions[q]) >= size:
            yield batch
            batch = []
    if batch:
        yield batch
