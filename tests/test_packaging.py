"""A wheel from a clean clone, by way of the source distribution, works on its own in another folder.

An editable install hides what a wheel forgets (templates, headers), so this is the one place where the files that users
receive are looked at and run.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VIEWER = ROOT / "src/luminal/view/built"

# A user's first minute: a small ONNX file compiled, called, and checked against numpy.
SCRIPT = """
import sys
from pathlib import Path

import numpy
from onnx import TensorProto, helper, numpy_helper, save

import luminal

generator = numpy.random.default_rng(0)
weights = generator.standard_normal((6, 5)).astype(numpy.float32)
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Softmax", ["product"], ["y"], axis=-1)],
    "tiny",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 6])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])],
    [numpy_helper.from_array(weights, "w")],
)
save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "tiny.onnx")

x = generator.standard_normal((3, 6)).astype(numpy.float32)
result = luminal.compile("tiny.onnx")(x)
y = result[0] if isinstance(result, (tuple, list)) else result
powers = numpy.exp(x.astype(numpy.float64) @ weights)
numpy.testing.assert_allclose(y, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
assert not {"torch", "onnxruntime"} & sys.modules.keys()
print(Path(luminal.__file__).resolve())
"""


def call(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def copy_of_the_repository(target: Path) -> Path:
    """What a fresh clone of the working tree would hold: no ignored file, no build product, links kept as links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: what a clone would hold is not known")
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        if source.is_symlink() or source.is_file():  # a deletion that is not committed yet is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    if VIEWER.is_dir():  # which is built, not committed, and goes into wheels
        shutil.copytree(VIEWER, target / VIEWER.relative_to(ROOT))
    return target


@dataclass(frozen=True)
class Distributions:
    clone: Path  # the copied repository
    sdist: Path  # the .tar.gz built from it
    wheel: Path  # the .whl built from the unpacked sdist, with a stale module planted in its build folder


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    work = tmp_path_factory.mktemp("packaging")
    clone = copy_of_the_repository(work / "clone")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", work / "dist")
    call(*build, "--sdist", clone, cwd=work)
    (sdist,) = (work / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # Python from 3.11.4 on
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(work / "unpacked")
    (source,) = (work / "unpacked").iterdir()
    build_lib = source / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    stale = build_lib / "luminal/core/stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("raise AssertionError('a module that the sources no longer have')\n")
    call(*build, "--wheel", source, cwd=work)
    (wheel,) = (work / "dist").glob("*.whl")
    return Distributions(clone, sdist, wheel)


def package_files(clone: Path) -> set[str]:
    """Every file of the package in a clone, its links followed, by path below ``luminal/``."""
    package = clone / "src/luminal"
    walked = os.walk(package, followlinks=True)
    return {str(Path(folder, name).relative_to(package)) for folder, _, names in walked for name in names}


def test_the_sdist_holds_every_source_once(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    needed = {f"src/luminal/{name}" for name in package_files(distributions.clone)}
    needed |= {"setup.py", "pyproject.toml", "LICENSE-MIT", "LICENSE-APACHE"}
    assert needed - names == set()
    second = [name for name in names if name.startswith(("frontends/", "core/", "codegen/", "runtime/"))]
    assert not second, f"a second copy of a package: {second}"


def test_the_wheel_holds_every_source_and_nothing_stale(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    package = {name.removeprefix("luminal/") for name in names if name.startswith("luminal/")}
    # The binding is shipped built; everything else that the repository has in the package is there, and nothing more.
    built = f"runtime/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    assert package == package_files(distributions.clone) - {"runtime/binding.cpp"} | {built}
    metadata = "-".join(distributions.wheel.name.split("-")[:2]) + ".dist-info"
    assert {name.split("/")[0] for name in names} == {"luminal", metadata}


@pytest.fixture(scope="module")
def environment(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; its dependencies are this environment's, seen through one path entry.

    Python reads ``.pth`` files in an environment's own site-packages only, so this environment's editable install of
    luminal, which is such a file, stays invisible.
    """
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin/python"
    own = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "dependencies.pth").write_text("\n".join(sorted(paths)) + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python)
    call(*pip, "install", "--quiet", "--no-deps", "--no-index", distributions.wheel, cwd=folder)
    return folder


# zig compiles a C++ library first, for minutes, and keeps it below the user's home: tests with other homes share it.
KEPT = {"ZIG_GLOBAL_CACHE_DIR": os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(Path.home() / ".cache/zig"))}
COMPILER = ("c++", "g++", "gcc", "cc", "as", "ld", "ld.bfd", "ar")


@pytest.mark.parametrize("tools", [COMPILER, ()], ids=["compiler-only", "no-tools"])
def test_an_installed_wheel_compiles_a_model(environment: Path, tmp_path: Path, tools: tuple[str, ...]) -> None:
    """PATH holds a compiler and no cmake, ninja or make; or nothing, and the compiler is the package index's clang."""
    if tools and not (shutil.which("c++") or shutil.which("g++")):
        pytest.skip("no C++ compiler on this machine's PATH")
    if not tools and find_spec("ziglang") is None:
        pytest.skip("the `clang` extra is not installed")
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in tools:
        if found := shutil.which(tool):
            (bare / tool).symlink_to(found)
    inherited = {"LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR"}
    keep = {name: value for name, value in os.environ.items() if name in inherited}
    home = tmp_path / "home"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    home.mkdir()
    script = elsewhere / "first_minute.py"
    script.write_text(SCRIPT)
    env = keep | KEPT | {"PATH": str(bare), "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    output = call(environment / "bin/python", "-P", script, cwd=elsewhere, env=env)
    assert Path(output.splitlines()[-1]).is_relative_to(environment.resolve())


# Where a system keeps its compilers; whatever lies there is hidden. (Debian's /usr/bin/ld.so is what starts programs.)
HIDDEN = """
for f in /usr/bin/*g++* /usr/bin/*gcc* /usr/bin/*clang* /usr/bin/c++ /usr/bin/cc /usr/bin/c89* /usr/bin/c99* \\
    /usr/bin/as /usr/bin/ld /usr/bin/ld.[!s]* /usr/local/bin/*g++* /usr/local/bin/*clang*; do
    [ -e "$f" ] && mount --bind /dev/null "$f"
done
exec "$@"
"""

PROGRAM = """
#include <stdio.h>
#include "tiny.h"

int main(void) {
    lm_library* library;
    lm_context* context;
    float x[3 * 6] = {0}, y[3 * 5];
    const int64_t in_shape[] = {3, 6}, out_shape[] = {3, 5};
    const lm_value in = {.data = x, .dtype = LM_FLOAT32, .rank = 2, .shape = in_shape};
    lm_value out = {.data = y, .dtype = LM_FLOAT32, .rank = 2, .shape = out_shape};
    if (tiny_open(NULL, &library) != LM_OK) return 1;
    if (tiny_context_create(library, &context) != LM_OK) return 1;
    if (tiny_run(context, TINY_ENTRY_MAIN, &in, &out, NULL) != LM_OK) return 1;
    printf("%.3f\\n", y[14]);
    tiny_context_destroy(context);
    return tiny_close(library);
}
"""


# A second model, and both in one process: each module has zig's C++ library in it.
OTHER = """
other = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "other", graph.input, graph.input)
other.output[0].name = "y"
save(helper.make_model(other, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "other.onnx")
"""
BOTH = """
import sys

sys.path[:0] = ["build", "other"]
import numpy
import other
import tiny

x = numpy.zeros((3, 6), numpy.float32)
for module, expected in ((tiny, 0.2), (other, 1)):
    for found in (module.run(x), module.Model(threads=1)(x)):
        (values,) = found.values()
        assert abs(values - expected).max() < 1e-6, (module, values)
"""


def test_a_newcomer_without_a_system_compiler(environment: Path, tmp_path: Path) -> None:
    """docs/guide/installing.md: compiled, viewed, profiled, inspected, exported, called from C, by Python and pip."""
    hiding = ("unshare", "--mount", "--map-root-user", "sh", "-c", HIDDEN, "sh")
    if find_spec("ziglang") is None:
        pytest.skip("the `clang` extra is not installed")
    if shutil.which("unshare") is None or subprocess.run([*hiding, "true"], capture_output=True).returncode:
        pytest.skip("this system lets no process hide files from itself")
    home = tmp_path / "home"
    home.mkdir()
    python = environment / "bin/python"
    env = KEPT | {"PATH": "/usr/bin:/bin", "HOME": str(home), "LUMINAL_JOBS": "2"}

    def run(*command: str | Path) -> str:
        return call(*hiding, *command, cwd=tmp_path, env=env)

    (tmp_path / "main.c").write_text(PROGRAM)
    (tmp_path / "model.py").write_text(SCRIPT.split("x = generator")[0] + OTHER)
    run(python, "model.py")
    found = json.loads(run(python, "-m", "luminal", "doctor", "--json"))
    (compiler,) = (row for row in found["findings"] if row["subject"] == "C++ compiler")
    assert found["healthy"] and "-m ziglang" in compiler["found"]
    run(python, "-m", "luminal", "compile", "tiny.onnx", "-o", "build")
    assert "contraction0" in run(python, "-m", "luminal", "profile", "build", "--runs", "3")
    assert "the model 'tiny'" in run(python, "-m", "luminal", "inspect", "build")
    if VIEWER.is_dir():
        run(python, "-m", "luminal", "view", "build", "--no-time", "-o", "page.html")
        assert "contraction0" in (tmp_path / "page.html").read_text()
    run(python, "-m", "luminal", "compile", "other.onnx", "-o", "other")
    (tmp_path / "both.py").write_text(BOTH)
    run(python, "both.py")
    flags = ("-I", "build", "-L", "build", "-ltiny", f"-Wl,-rpath,{tmp_path / 'build'}", "-o", "main")
    run(python, "-m", "ziglang", "cc", "-O2", "-std=c99", "main.c", *flags)
    assert run("./main") == "0.200\n"  # of equal numbers, softmax makes equal shares


def test_an_editable_install_is_a_plain_path() -> None:
    """An import hook would hide the sources from mypy and editors; a simple ``src`` layout needs none."""
    assert not [finder for finder in sys.meta_path if "__editable__" in repr(finder)]
