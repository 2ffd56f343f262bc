"""What the benchmarks are to show, and whether they do."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.accuracy import LIMIT
from benchmarks.errors import worst
from benchmarks.measure import Sample
from benchmarks.peers import PEERS
from benchmarks.suite import CASES, DECODER_LAYERS, FRONT_ENDS, KINDS, PRECISIONS, Case, Setting, luminal

# How many times faster than the best peer, at batch 1 on 2 threads.
FASTER = {
    "fp32": {
        "minilm": 1.15, "bert-base": 1.15, "gpt2": 1.15, "vit": 1.05, "resnet50": 1.05, "mobilenet": 1.3,
        "convnext": 1.05, "whisper": 1.05,
    },
    "bf16": {
        "minilm": 1.3, "bert-base": 1.3, "gpt2": 1.3, "vit": 1.2, "resnet50": 1.2, "mobilenet": 1.2, "convnext": 1.2,
        "whisper": 1.2,
    },
}  # fmt: skip
MEAN = {"fp32": 1.25, "bf16": 1.5}  # of the same eight models, geometric
AGAINST = {"fp32": tuple(PEERS), "bf16": ("OpenVINO",)}
ELSEWHERE = 1 / 1.05  # how many times faster in all other settings, at the least, among which are
SIZES = ((1, 1), (8, 2), (32, 2))  # these batches and threads, of what is graded
# How many times its peers' largest error luminal's may be. In bfloat16 they round what luminal rounds, the operands of
# contractions, and whatever else they store. Of integers everybody has the same: which side a value near the border of
# two is rounded to is chance, and either is as near, but a later layer may make more of one; what that adds may be as
# large as what the integers cost themselves. Float32 has LIMIT.
WITHIN = {"bf16": 1.0, "int8": 2.0}
SYMBOLIC = 1.10  # how many times the time of fixed sizes symbolic ones may take
COMPILE = {"minilm": 40.0, "bert-base": 60.0, "resnet50": 60.0}  # seconds, with an empty cache
LIBRARY = 2 << 20  # bytes without weights


@dataclass(frozen=True)
class Result:
    """The samples of one model in a setting, a process each; ``layers`` are those of a decoder."""

    case: Case
    setting: Setting
    layers: int
    samples: tuple[Sample, ...]

    @property
    def title(self) -> str:
        title = self.case.title
        return f"{title}, {self.layers} of {DECODER_LAYERS} layers" if self.case.decoder else title

    @property
    def peers(self) -> list[str]:
        """Those that ran."""
        return [peer for peer in PEERS if all(peer in sample.times for sample in self.samples)]

    def seconds(self, contender: str) -> float:
        """A contender's time: the median over the processes."""
        return statistics.median(sample.times[contender] for sample in self.samples)

    def best(self, contender: str) -> float:
        """A contender's shortest time."""
        return min(sample.best[contender] for sample in self.samples)

    def ratio(self, one: str, other: str) -> float:
        """How many times the other's time one takes: the median over the processes."""
        return statistics.median(sample.times[one] / sample.times[other] for sample in self.samples)

    def advantage(self, against: Sequence[str] = (), contender: str = "") -> float | None:
        """How many times luminal's time the best peer takes, of those ``against`` (all, where none is named): the
        median over the processes. None where none of them ran. ``contender`` is the setting's headline without."""
        ours = contender or self.setting.headline
        peers = [peer for peer in self.peers if not against or peer in against]
        if not peers:
            return None
        return statistics.median(
            min(sample.times[peer] for peer in peers) / sample.times[ours] for sample in self.samples
        )

    @property
    def error(self) -> float:
        """The largest of luminal, through whichever front end; NaN where one is NaN."""
        return worst(e for sample in self.samples for key, e in sample.errors.items() if key not in PEERS)

    @property
    def peers_error(self) -> float:
        """The largest of the peers that ran, but for those that are no numbers; infinite where there is none."""
        found = [sample.errors[peer] for sample in self.samples for peer in self.peers]
        return max(filter(math.isfinite, found), default=math.inf)

    @property
    def best_peer(self) -> str:
        """The fastest of those that ran; empty where none did."""
        return min(self.peers, key=self.seconds, default="")

    def ceiling(self, contender: str) -> tuple[float, str]:
        """What part of its time the machine would need at its peak, and at what: its operations, or reading as many
        bytes."""
        unit = self.setting.precision
        unit = unit if unit != "fp32" and getattr(self.samples[0].peak, unit) else "FMA"
        computing = statistics.median(s.operations / s.peak.computing(unit) / s.times[contender] for s in self.samples)
        reading = statistics.median(s.bytes / s.reading / s.times[contender] for s in self.samples)
        return (computing, unit) if computing >= reading else (reading, "reading")


@dataclass(frozen=True)
class Verdict:
    """A number that is to be reached, and the one that was found; ``reached`` is None where none was."""

    what: str
    goal: str
    found: str
    reached: bool | None


def mean(ratios: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def wanted(result: Result) -> tuple[float, tuple[str, ...]]:
    """How many times faster a model is to be in its setting, and than the best of which peers; none named: of all."""
    precision = result.setting.precision
    if result.setting == Setting(precision) and precision in FASTER:
        return FASTER[precision].get(result.case.name, ELSEWHERE), AGAINST[precision]
    return ELSEWHERE, ()


def faster(precision: str, results: Sequence[Result]) -> list[Verdict]:
    """How far the models that are graded are ahead at batch 1 on 2 threads, and their mean, which needs all of them."""
    least, measured = FASTER[precision], {r.case.name: r for r in results if r.setting == Setting(precision)}
    ratios: dict[str, float | None] = {
        name: measured[name].advantage(AGAINST[precision]) if name in measured else None for name in least
    }
    found = [ratio for ratio in ratios.values() if ratio is not None]
    average = mean(found) if len(found) == len(least) else None
    return [
        *(at_least(CASES[name].title, least[name], ratio) for name, ratio in ratios.items()),
        at_least(f"geometric mean of these {len(least)}", MEAN[precision], average),
    ]


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """What the models show apart from that."""
    by_setting: dict[Setting, dict[str, Result]] = {}
    for result in results:
        by_setting.setdefault(result.setting, {})[result.case.name] = result
    measured = {setting.precision for setting in by_setting}
    others = dict.fromkeys(
        [setting for setting in by_setting if setting not in map(Setting, FASTER)]
        + [Setting(precision, *size) for precision in FASTER if precision in measured for size in SIZES]
    )
    return [
        *(_nowhere_slower(setting, by_setting.get(setting, {})) for setting in others),
        *(
            _exact(precision, [r for r in results if r.setting.precision == precision])
            for precision in PRECISIONS
            if precision in measured
        ),
        *_costs([result for result in results if result.setting.main]),
    ]


def at_least(what: str, goal: float, found: float | None, title: str = "") -> Verdict:
    """The verdict on a ratio, of what ``title`` names."""

    def reached(ratio: float) -> bool:
        return ratio >= goal

    number = "at least " + told(goal, lambda ratio: math.isclose(ratio, goal, rel_tol=1e-3))
    if found is None:
        return Verdict(what, number, "not measured", None)
    return Verdict(what, number, told(found, reached) + (f" ({title})" if title else ""), reached(found))


def at_most_seconds(what: str, goal: float, found: float) -> Verdict:
    """The verdict on a time."""

    def reached(seconds: float) -> bool:
        return seconds <= goal

    return Verdict(what, f"at most {goal:.0f} s", f"{told(found, reached, digits=1)} s", reached(found))


def told(value: float, right: Callable[[float], bool], digits: int = 2) -> str:
    """``value`` with so many decimals, or with as many more as it takes for what is read to be as right as it is."""
    texts = (f"{value:.{count}f}" for count in range(digits, 17))
    return next((text for text in texts if right(float(text)) == right(value)), repr(value))


def _nowhere_slower(setting: Setting, results: Mapping[str, Result]) -> Verdict:
    """The model of a setting that is the least ahead, and of how many that were measured there."""
    ratios = {r.title: ratio for r in results.values() if (ratio := r.advantage()) is not None}
    title = min(ratios, key=lambda title: ratios[title], default="")
    what = f"the least ahead; {setting}: the best peer's time / luminal's"
    return at_least(what, ELSEWHERE, ratios.get(title), f"{title}; {len(ratios)} measured")


def _exact(precision: str, results: Sequence[Result]) -> Verdict:
    """The model of a precision whose error is the largest, as a part of what it is compared with."""
    of = f"{LIMIT:g}" if precision == "fp32" else "the largest of its peers"
    most = WITHIN.get(precision, 1.0)

    def part(result: Result) -> float:
        unit = LIMIT if precision == "fp32" else result.peers_error
        return result.error / unit if unit else math.inf if result.error else 0.0

    def reached(ratio: float) -> bool:
        return ratio <= most  # which a NaN is not

    result = max(results, key=lambda r: (math.isnan(part(r)), part(r)))
    ratio = part(result)
    return Verdict(
        f"{PRECISIONS[precision]}: luminal's largest error, from float32 PyTorch, relative to the output's largest "
        f"magnitude / {of}",
        f"at most {most:.2f}",
        f"{told(ratio, reached)} ({result.error:.1e}, {result.title}; {result.setting})",
        reached(ratio),
    )


def _costs(results: Sequence[Result]) -> list[Verdict]:
    """What symbolic sizes, compiling and the libraries cost."""
    symbolic = {
        f"{r.title}, {end}, {r.setting.precision}": r.ratio(luminal(end, "symbolic"), luminal(end))
        for r in results
        for end in FRONT_ENDS
    }
    seconds = {
        (r.case.name, r.setting.precision): max(
            r.samples[0].compiled[luminal(end, kind)].seconds for end in FRONT_ENDS for kind in KINDS
        )
        for r in results
    }
    libraries = {f"{r.title}, {r.setting.precision}": r.samples[0].library for r in results}
    rows = []
    if symbolic:
        most = max(symbolic, key=lambda key: symbolic[key])
        rows.append(
            Verdict(
                "symbolic sizes: the most that they cost, as a part of the time of fixed ones",
                f"at most {SYMBOLIC:.2f}",
                f"{told(symbolic[most], lambda cost: cost <= SYMBOLIC)} ({most})",
                symbolic[most] <= SYMBOLIC,
            )
        )
    for (name, precision), found in seconds.items():
        if name in COMPILE:
            what = (
                f"{CASES[name].title}, {precision}: compiled with an empty cache, the longest of both front ends, with "
                "fixed and symbolic sizes"
            )
            rows.append(at_most_seconds(what, COMPILE[name], found))
    if libraries:
        most = max(libraries, key=lambda key: libraries[key])
        what = "the largest library without weights"
        size = libraries[most]
        told_size = told(size / 2**20, lambda mebibytes: mebibytes < LIBRARY / 2**20)
        rows.append(Verdict(what, "under 2 MiB", f"{told_size} MiB ({most})", size < LIBRARY))
    return rows
