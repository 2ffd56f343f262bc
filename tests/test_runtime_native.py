"""The runtime from C and C++: the exported ABI, sanitizers, two libraries in one program, the exported project."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import cmake
import ninja
import numpy as np
import pytest

from luminal.core import device
from luminal.core import target as targets
from luminal.runtime import loader
from tests import runtime_example
from tests.runtime_example import INCLUDE, LINK_LIBRARIES, NATIVE, SOURCES, WARNINGS, Example, run

C_FLAGS = ("-std=c99", "-D_POSIX_C_SOURCE=200809L", *WARNINGS, "-g")
CXX_FLAGS = ("-std=c++17", *WARNINGS, "-g", "-O1")


@pytest.fixture(scope="module")
def example_a(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return runtime_example.build(tmp_path_factory.mktemp("a"), "example_a")


@pytest.fixture(scope="module")
def example_b(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return runtime_example.build(tmp_path_factory.mktemp("b"), "example_b", seed=1)


def link_flags(*examples: Example) -> list[str]:
    return [
        flag
        for example in examples
        for flag in (f"-L{example.folder}", f"-l{example.name}", f"-Wl,-rpath,{example.folder}")
    ]


def build_abi_test(example: Example, flags: Sequence[str], program: Path) -> Path:
    source = NATIVE / "runtime_abi_test.c"
    run(["gcc", *C_FLAGS, *flags, f"-I{example.folder}", source, "-o", program, *link_flags(example)])
    return program


def test_needs_libc_only_and_exports_its_abi_only(example_a: Example) -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", example_a.library]))
    assert set(needed) <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}
    exported = {line.split()[-1] for line in run(["nm", "-D", "--defined-only", example_a.library]).splitlines()}
    names = "abi_version metadata_json open close context_create context_destroy workspace_size output_shape run"
    names += " set_weights reset get_state set_state last_error"
    assert exported == {f"example_a_{name}" for name in names.split()}


@pytest.mark.parametrize("compiler", [("gcc", "-std=c99", "-x", "c"), ("g++", "-std=c++11", "-x", "c++")])
def test_the_header_stands_alone(example_a: Example, compiler: tuple[str, ...]) -> None:
    run([*compiler, *WARNINGS, "-fsyntax-only", example_a.folder / "example_a.h"])


def test_the_abi_from_c(example_a: Example, tmp_path: Path) -> None:
    run([build_abi_test(example_a, [], tmp_path / "abi_test"), example_a.weights])


def test_the_abi_under_address_and_undefined_behaviour_sanitizers(tmp_path: Path) -> None:
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    example = runtime_example.build(tmp_path, "example_a", flags)
    run([build_abi_test(example, flags, tmp_path / "abi_test"), example.weights])


def without_randomisation(command: list[str | Path]) -> list[str | Path]:
    """The thread sanitizer's shadow memory needs an address layout that much randomisation can spoil."""
    setarch = shutil.which("setarch")
    return [setarch, "-R", *command] if setarch else command


@pytest.mark.parametrize("what", ["pool", "slots"])
def test_what_threads_share_under_the_thread_sanitizer(what: str, tmp_path: Path) -> None:
    program = tmp_path / f"{what}_test"
    source = NATIVE / f"runtime_{what}_test.cpp"
    flags = ["-fsanitize=thread", f"-DLM_NAMESPACE={what}", f"-I{INCLUDE}"]
    run(["g++", *CXX_FLAGS, *flags, source, "-o", program, "-pthread"])
    run(without_randomisation([program]))


Granted = Callable[[str, Mapping[str, str]], tuple[int, int]]
MEMINFO = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    {} kB\nBuffers:         1 kB\n"


@pytest.fixture(scope="module")
def granted(tmp_path_factory: pytest.TempPathFactory) -> Granted:
    """The CPUs (0: no limit) and the bytes that are left to a process of a machine with 800 KiB, in the groups that a
    text names, where files in the tree of groups hold texts."""
    folder = tmp_path_factory.mktemp("control_groups")
    program, membership, root, machine = (folder / name for name in ("program", "cgroup", "root", "meminfo"))
    source = NATIVE / "runtime_control_groups_test.cpp"
    run(["g++", *CXX_FLAGS, "-DLM_NAMESPACE=groups", f"-I{INCLUDE}", source, "-o", program])
    machine.write_text(MEMINFO.format(800))

    def granted(named: str, files: Mapping[str, str]) -> tuple[int, int]:
        membership.write_text(named)
        shutil.rmtree(root, ignore_errors=True)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        cpus, memory = map(int, run([program, membership, root, machine]).split())
        assert cpus == (device.quota_cpus(membership, root) or 0)  # what is compiled for is what will run
        return cpus, memory

    return granted


def test_caches_of_unknown_size_are_left_out(tmp_path: Path) -> None:
    described = {
        "index0": {"type": "Data", "level": "1", "size": "48K"},
        "index1": {"type": "Instruction", "level": "1", "size": "32K"},
        "index2": {"type": "Unified", "level": "2"},  # no file where the size is not known
        "index3": {"type": "Unified", "level": "3", "size": "32M"},
        "index4": {"size": "1K"},
    }
    for name, files in described.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(f"{text}\n")
    assert targets.cache_sizes(tmp_path) == {1: 48 << 10, 3: 32 << 20}
    assert targets.cache_sizes(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("named", "files", "cpus"),
    [
        ("0::/outer/inner\n", {}, 0),
        ("0::/outer/inner\n", {"outer/inner/cpu.max": "max 100000\n"}, 0),
        ("0::/outer/inner\n", {"outer/inner/cpu.max": "100000 100000\n"}, 1),
        ("0::/outer/inner\n", {"outer/inner/cpu.max": "10000 100000\n"}, 1),
        ("0::/outer/inner\n", {"outer/inner/cpu.max": "150000 100000\n", "outer/cpu.max": "max 100000\n"}, 2),
        ("0::/outer/inner\n", {"outer/inner/cpu.max": "800000 100000\n", "outer/cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "200000 50000\n"}, 4),  # as a container sees it
        ("0::/outer\n", {"outer/inner/cpu.max": "100000 100000\n"}, 0),  # of a group that is not ours
        ("9:memory:/other\n0::/outer\n", {"outer/cpu.max": "100000 100000\n"}, 1),  # beside version 1
        ("9:cpu:/outer\n", {"outer/cpu.max": "100000 100000\n"}, 0),
        ("", {"cpu.max": "100000 100000\n"}, 0),
        ("a line\nof: something else", {"cpu.max": "100000 100000\n"}, 0),
        ("3:cpuset,cpu,cpuacct:/outer\n0::/\n", {
            "cpu/outer/cpu.cfs_quota_us": "250000\n", "cpu/outer/cpu.cfs_period_us": "100000\n",
        }, 3),
        ("3:cpu:/host/name\n", {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 2),
        ("3:cpu:/outer\n", {"cpu/outer/cpu.cfs_quota_us": "-1\n", "cpu/outer/cpu.cfs_period_us": "100000\n"}, 0),
        ("3:cpuset:/outer\n", {
            "cpu/outer/cpu.cfs_quota_us": "100000\n", "cpu/outer/cpu.cfs_period_us": "100000\n",
        }, 0),
    ],
)  # fmt: skip
def test_the_cpus_of_control_groups(granted: Granted, named: str, files: Mapping[str, str], cpus: int) -> None:
    assert granted(named, files)[0] == cpus


@pytest.mark.parametrize(
    ("named", "files", "kilobytes"),
    [
        ("0::/outer/inner\n", {}, 800),
        ("0::/outer/inner\n", {"outer/inner/memory.max": "max\n", "outer/inner/memory.current": "4096\n"}, 800),
        ("0::/outer/inner\n", {"outer/inner/memory.max": "524288\n", "outer/inner/memory.current": "4096\n"}, 508),
        ("0::/outer/inner\n", {"outer/memory.max": "524288\n", "outer/memory.current": "524288\n"}, 0),
        ("0::/outer/inner\n", {"outer/memory.max": "524288\n", "outer/memory.current": "624288\n"}, 0),
        ("0::/outer\n", {"memory.max": "1152921504606846976\n", "memory.current": "4096\n"}, 800),
        ("4:memory:/a/b\n0::/\n", {
            "memory/a/memory.limit_in_bytes": "409600\n", "memory/a/memory.usage_in_bytes": "102400\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "502400\n",
        }, 300),
    ],
)  # fmt: skip
def test_the_memory_of_control_groups(granted: Granted, named: str, files: Mapping[str, str], kilobytes: int) -> None:
    assert granted(named, files)[1] == kilobytes << 10


def test_blocks_are_aligned_and_given_back(tmp_path: Path) -> None:
    program = tmp_path / "memory_test"
    source = NATIVE / "runtime_memory_test.cpp"
    run(["g++", *CXX_FLAGS, "-DLM_NAMESPACE=memory", f"-I{INCLUDE}", source, "-o", program])
    run(["sh", "-c", f"ulimit -v {256 << 10} && exec {program}"])


def test_constants_that_must_be_finite(tmp_path: Path) -> None:
    program = tmp_path / "weights_test"
    source = NATIVE / "runtime_weights_test.cpp"
    flags = ["-fsanitize=address,undefined", "-DLM_NAMESPACE=weights"]
    run(["g++", *CXX_FLAGS, *flags, f"-I{INCLUDE}", source, "-o", program])
    run([program])


def test_weights_are_copied_into_huge_pages_where_there_is_room(tmp_path: Path) -> None:
    program = tmp_path / "bring_in_test"
    source = NATIVE / "runtime_bring_in_test.cpp"
    run(["g++", *CXX_FLAGS, "-DLM_NAMESPACE=weights", f"-I{INCLUDE}", source, "-o", program])
    run([program, tmp_path / "model.weights"])


def test_two_libraries_under_the_thread_sanitizer(tmp_path: Path) -> None:
    flags = ["-fsanitize=thread"]
    examples = [
        runtime_example.build(tmp_path / name, name, flags, seed)
        for seed, name in enumerate(("example_a", "example_b"))
    ]
    program = build_two(examples, flags, tmp_path / "two_test", static=False)
    run(without_randomisation([program, *(example.weights for example in examples)]))


def build_two(examples: Sequence[Example], flags: Sequence[str], program: Path, *, static: bool) -> Path:
    includes = [f"-I{example.folder}" for example in examples]
    if static:
        libraries: list[str | Path] = [library for example in examples for library in example.objects]
    else:
        libraries = list(link_flags(*examples))
    source = NATIVE / "runtime_two_test.cpp"
    run(["g++", *CXX_FLAGS, *flags, *includes, source, "-o", program, *libraries, *LINK_LIBRARIES])
    return program


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_two_libraries_in_one_program(example_a: Example, example_b: Example, tmp_path: Path, static: bool) -> None:
    examples = [example_a, example_b]
    program = build_two(examples, [], tmp_path / "two_test", static=static)
    first, second = run([program, example_a.weights, example_b.weights]).split()
    for example, printed in ((example_a, first), (example_b, second)):
        row = example.table[3]
        expected = (row * row) @ example.table[5] + example.bias[5]
        np.testing.assert_allclose(float(printed), expected, rtol=1e-5, atol=1e-5)


def test_the_exported_project(example_a: Example, tmp_path: Path) -> None:
    project = tmp_path / "project"
    runtime_example.write_sources(project, "example_a")
    (project / "kernels").mkdir()
    (project / "library.cpp").write_text(SOURCES[0].read_text())
    (project / "kernels" / "k0.cpp").write_text(SOURCES[1].read_text())
    shutil.copytree(INCLUDE, project / "include")
    shutil.copy(example_a.weights, project)
    model = runtime_example.example_interface("example_a")
    module = runtime_example.render("python_module.cpp.j2", interface=model, checkpoint=None)
    (project / "python_module.cpp").write_text(module)
    cmake_lists = runtime_example.render(
        "CMakeLists.txt.j2",
        interface=model,
        checkpoint=None,
        namespace="example_a",
        kernel_sources=["kernels/k0.cpp"],
        target=targets.detect(),
        kernel_groups=[
            {
                "library": "example_a_kernels",
                "flags": ["-O3", "-fno-exceptions", "-fno-rtti"],
                "definitions": ["LM_NAMESPACE=example_a"],
            }
        ],
        library_flags=["-O2", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"],
    )
    (project / "CMakeLists.txt").write_text(cmake_lists)

    build = tmp_path / "build"
    path = os.pathsep.join([cmake.CMAKE_BIN_DIR, ninja.BIN_DIR, os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    options = ["-DBUILD_PYTHON_MODULE=ON", f"-DPython_EXECUTABLE={sys.executable}"]  # which knows where pybind11 is
    run(["cmake", "-G", "Ninja", "-S", project, "-B", build, *options], environment)
    run(["cmake", "--build", build], environment)

    (rows,) = loader.load(build / "libexample_a.so").run([np.array([2]), np.float32(1)])
    np.testing.assert_array_equal(rows, example_a.table[[2]])

    # Isolated, so that luminal cannot be found, and from another folder than the library's.
    script = tmp_path / "use_module.py"
    script.write_text(USE_MODULE)
    site = Path(np.__file__).parent.parent
    printed = run([sys.executable, "-S", "-E", script, build, site], folder=tmp_path)
    np.testing.assert_array_equal(np.array(printed.split(), np.float32), example_a.table[2])


USE_MODULE = """
import sys

sys.path[:0] = sys.argv[1:3]
import numpy as np
import example_a

result = example_a.run(ids=np.array([2]), scale=np.float32(1))
assert list(result) == ["embedding"]
assert (example_a.embed(np.array([2]), scale=np.float32(1))["embedding"] == result["embedding"]).all()
model = example_a.Model(threads=1)
assert (model(np.array([2]), np.float32(1))["embedding"] == result["embedding"]).all()
assert model.score(result["embedding"], np.zeros(0, np.float32))["joined"].shape == (8,)

for call, expected in [
    (lambda: example_a.run(np.array([2])), TypeError),
    (lambda: example_a.run(np.array([2]), np.float32(1), scale=np.float32(1)), TypeError),
    (lambda: example_a.run(np.array([2]), np.float32(1), 3), TypeError),
    (lambda: example_a.run(np.array([2]), scale=np.float32(1), other=1), TypeError),
    (lambda: example_a.run([0.5], np.float32(1)), ValueError),
    (lambda: example_a.run([16], np.float32(1)), IndexError),
    (lambda: example_a.Model(weights="/nowhere"), OSError),
]:
    try:
        call()
    except expected:
        continue
    raise AssertionError(f"expected {expected}")
assert "luminal" not in sys.modules
print(*(repr(float(value)) for value in result["embedding"][0]))
"""
