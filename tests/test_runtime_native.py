"""The runtime from C and C++: the exported ABI, sanitizers, two libraries in one program, the exported project."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
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


@pytest.fixture(scope="module")
def control_groups(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[int, int]]:
    """The CPUs and the bytes that a tree of control groups grants, 0 where it sets no limit, to a process in the group
    that a text names, for the ``limits`` of a file in groups by name."""
    folder = tmp_path_factory.mktemp("control_groups")
    program, membership, root = folder / "program", folder / "cgroup", folder / "root"
    source = NATIVE / "runtime_control_groups_test.cpp"
    run(["g++", *CXX_FLAGS, "-DLM_NAMESPACE=groups", f"-I{INCLUDE}", source, "-o", program])
    groups = {"root": root, "outer": root / "outer", "inner": root / "outer" / "inner"}
    groups["inner"].mkdir(parents=True)

    def granted(named: str, file: str, **limits: str) -> tuple[int, int]:
        membership.write_text(named)
        for name, group in groups.items():
            for old in group.glob("*.max"):
                old.unlink()
            if name in limits:
                (group / file).write_text(limits[name])
        cpus, memory = map(int, run([program, membership, root]).split())
        assert cpus == (device.quota_cpus(membership, root) or 0)  # what is compiled for is what will run
        return cpus, memory

    return granted


def test_the_quota_of_control_groups(control_groups: Callable[..., tuple[int, int]]) -> None:
    def cpus(named: str, **limits: str) -> int:
        return control_groups(named, "cpu.max", **limits)[0]

    assert cpus("0::/outer/inner\n") == 0  # no limit
    assert cpus("0::/outer/inner\n", inner="max 100000\n") == 0
    assert cpus("0::/outer/inner\n", inner="100000 100000\n") == 1
    assert cpus("0::/outer/inner\n", inner="10000 100000\n") == 1
    assert cpus("0::/outer/inner\n", inner="150000 100000\n", outer="max 100000\n") == 2
    assert cpus("0::/outer/inner\n", inner="800000 100000\n", outer="300000 100000\n") == 3  # the group around it
    assert cpus("0::/\n", root="200000 50000\n") == 4  # as a container sees it
    assert cpus("0::/outer\n", inner="100000 100000\n") == 0  # of a group that is not ours
    assert cpus("9:cpu:/other\n0::/outer\n", outer="100000 100000\n") == 1  # beside version 1
    assert cpus("9:cpu:/outer\n", outer="100000 100000\n") == 0 == cpus("")


def test_the_memory_of_control_groups(control_groups: Callable[..., tuple[int, int]]) -> None:
    def memory(named: str, **limits: str) -> int:
        return control_groups(named, "memory.max", **limits)[1]

    assert memory("0::/outer/inner\n") == 0  # all that the machine has
    assert memory("0::/outer/inner\n", inner="max\n") == 0
    assert memory("0::/outer/inner\n", inner="1048576\n", outer="max\n") == 1 << 20
    assert memory("0::/outer/inner\n", inner="1048576\n", outer="4096\n") == 4096
    assert memory("0::/outer\n", inner="4096\n", root="1152921504606846976\n") == 0  # more than the machine has


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
    module = runtime_example.render("python_module.cpp.j2", interface=model)
    (project / "python_module.cpp").write_text(module)
    cmake_lists = runtime_example.render(
        "CMakeLists.txt.j2",
        interface=model,
        namespace="example_a",
        kernel_sources=["kernels/k0.cpp"],
        target=targets.detect(),
        kernel_flags=["-O3", "-fno-exceptions", "-fno-rtti"],
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
