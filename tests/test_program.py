"""The program: its printed form and its specification; targets and switches beside it."""

from dataclasses import replace

import numpy as np
import pytest

from luminal.core import config, target, types
from luminal.core.errors import SpecError
from luminal.core.schedule.program import ir, spec
from tests.codegen_programs import scaled_rows
from tests.conftest import Golden


def test_text(golden: Golden) -> None:
    golden.check("program.txt", ir.text(scaled_rows()))


def test_a_good_program_passes() -> None:
    spec.check(scaled_rows())


def refusal(changed: ir.Program) -> str:
    with pytest.raises(SpecError) as caught:
        spec.check(changed)
    return str(caught.value)


def test_faults_are_named() -> None:
    good = scaled_rows()
    main, other = good.entries
    x, y, squared, weight = good.buffers

    def entry(**changes: object) -> ir.Program:
        return replace(good, entries=(replace(main, **changes), other))

    def first_step(**changes: object) -> ir.Program:
        return entry(region=ir.Region((replace(main.steps[0], **changes), main.steps[1])))

    assert "no C identifier" in refusal(replace(good, name="a model"))
    assert "unknown dimensions ['rows']" in refusal(replace(good, dims=()))
    assert "kernel 7 does not exist" in refusal(first_step(kernel=7))
    assert "takes 2 arrays, found 1" in refusal(first_step(arguments=("squared",)))
    assert "buffer nothing does not exist" in refusal(first_step(arguments=("squared", "nothing")))
    assert "x is written, but lies in input" in refusal(first_step(arguments=("x", "squared")))
    fetch = ir.Fetch("weight", 0, 64, 64)
    assert "weight is fetched by a kernel that fetches nothing" in refusal(first_step(fetch=fetch))
    assert "weight is fetched from byte 4096 of" in refusal(first_step(fetch=replace(fetch, first=4096)))
    assert "x is fetched, but lies in input" in refusal(first_step(fetch=replace(fetch, buffer="x")))
    assert "overlaps squared" in refusal(first_step(arguments=("squared", "squared")))
    assert "ends behind the arena" in refusal(entry(arena_size=64))
    assert "is no input of the entry" in refusal(entry(inputs=()))
    assert "weight has no value" in refusal(replace(good, constants={}))
    wide = {"weight": good.constants["weight"].astype(np.float64)}
    assert "expected float32, its value is float64" in refusal(replace(good, constants=wide))
    shifted = replace(squared, offset=4)
    assert "not aligned" in refusal(replace(good, buffers=(x, y, shifted, weight)))
    assert "more than once" in refusal(replace(good, buffers=(x, x, y, squared, weight)))
    assert "no permutation" in refusal(replace(good, buffers=(replace(x, order=(0, 0)), y, squared, weight)))


def test_lanes() -> None:
    assert [target.AVX512.lanes(t) for t in (types.f32, types.f64, types.f16, types.i8, types.bool_)] == [
        16,
        8,
        16,
        64,
        16,
    ]
    assert [t.lanes(types.f32) for t in (target.X86_64, target.AVX2)] == [4, 8]


def test_targets_by_name() -> None:
    assert target.parse("avx2") is target.AVX2
    assert target.parse("host") == target.detect()
    assert target.supported(target.detect())
    assert all(target.parse(name) is target.AARCH64 for name in ("aarch64", "neon", "arm64", "aarch64-linux-gnu"))
    with pytest.raises(ValueError, match="expected host, x86-64, avx2, avx512, avx512-vnni, avx512-bf16, amx, aarch64"):
        target.parse("pentium")


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_JOBS", "3")
    assert config.JOBS.value == 3
    monkeypatch.setenv("LUMINAL_JOBS", "")
    assert config.JOBS.value == config.JOBS.default
    for text in ("0", "many"):
        monkeypatch.setenv("LUMINAL_JOBS", text)
        with pytest.raises(ValueError, match="LUMINAL_JOBS"):
            _ = config.JOBS.value
    assert all(name == switch.variable and switch.help for name, switch in config.TABLE.items())
