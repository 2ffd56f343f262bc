"""Libraries for systems other than this one's, from one model: built, looked at, and run where something here can.

Windows' run under wine, WebAssembly's in Node and in a headless browser, musl's with its own loader where one is
installed; those for macOS are read, since nothing here runs them."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import luminal
from luminal import machines
from luminal.codegen import platform as platforms
from luminal.codegen import toolchain
from luminal.codegen.interface import FUNCTIONS
from luminal.core import ir, ops
from luminal.core import target as targets
from luminal.core.errors import TargetError
from luminal.core.types import f32
from luminal.module import Module
from luminal.runtime import loader
from tests import browser, emulation
from tests.images_support import BATCH, assert_right, c_program, compiled, outputs, source
from tests.mach_o import MachO
from tests.runtime_example import run

pytest.importorskip("ziglang")

WINE = shutil.which("wine")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return functools.cache(lambda target: compiled(target).export(tmp_path_factory.mktemp(target)))


# ---- WebAssembly -----------------------------------------------------------------------------------------------------

CALLER = """
import { load } from "./images.mjs";
import { readFileSync, writeFileSync } from "node:fs";
const model = await load();
const data = new Float32Array(new Uint8Array(readFileSync("x.bin")).buffer);
const { [OUTPUT]: found } = model.run({ input: { data, shape: [3, 3, 16, 16] } });
writeFileSync("y.bin", new Uint8Array(found.data.buffer));
const said = [];
for (const inputs of [
  { input: { data: new Float32Array(5 * 768), shape: [5, 3, 16, 16] } },
  { input: { data: new Float32Array(5), shape: [1, 3, 16, 16] } },
  { other: { data, shape: [3, 3, 16, 16] } },
]) {
  try { model.run(inputs); said.push("nothing"); } catch (error) { said.push(error.message); }
}
model.close();
console.log(JSON.stringify({ shape: found.shape, said }));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_a_module_of_webassembly_computes_the_model_in_node(folders: Any) -> None:
    folder = folders("wasm32")
    caller = CALLER.replace("OUTPUT", json.dumps(compiled("wasm32").output_names[0]))
    (folder / "caller.mjs").write_text(caller)
    source()[1].numpy().tofile(folder / "x.bin")
    answer = json.loads(run(["node", "caller.mjs"], folder=folder))
    assert_right(np.fromfile(folder / "y.bin", np.float32).reshape(BATCH, 10))
    assert answer["shape"] == [BATCH, 10]
    outside, few, unknown = answer["said"]
    assert 'has size 5, outside the bounds 1..4 of "batch"' in outside
    assert "expected { data: Float32Array, shape: [..] } of float32[batch,3,16,16]" in few
    assert unknown == 'no input "other": expected input'


@pytest.mark.skipif(browser.program() is None, reason="needs Chromium")
def test_a_module_of_webassembly_computes_the_model_in_a_page(folders: Any) -> None:
    folder = folders("wasm32")
    source()[1].numpy().tofile(folder / "x.bin")
    (folder / "index.html").write_text("""<body></body><script type="module">
        import { load } from "./images.mjs";
        const [model, answer] = await Promise.all([load(), fetch("x.bin")]);
        const data = new Float32Array(await answer.arrayBuffer());
        const [found] = Object.values(model.run({ input: { data, shape: [3, 3, 16, 16] } }));
        window.found = Array.from(found.data);
        document.body.dataset.ready = "yes";
    </script>""")
    with browser.served(folder) as address, browser.browser() as page:
        page.open(address)
        found = np.array(page.value("window.found"), np.float32)
    assert_right(found.reshape(BATCH, 10))


def test_a_module_of_webassembly_asks_its_host_for_little(folders: Any) -> None:
    """Nothing of a file system, a network or random numbers that a page would have to give."""
    text = (folders("wasm32") / "images.wasm").read_bytes()
    assert text.startswith(b"\0asm") and b"simd128" not in text[:4]
    asked = set(re.findall(rb"wasi_snapshot_preview1[\x00-\x1f]+(\w+)", text))
    assert {b"fd_close"} <= asked and not asked & {b"random_get", b"sock_accept", b"path_unlink_file"}
    assert f"{Path.home()}/".encode() not in text


# ---- Windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(WINE is None, reason="needs wine: install Debian's package wine64")
@pytest.mark.parametrize("target", ["x86-64-windows", "avx2-windows"])
def test_a_dll_computes_the_model(target: str, folders: Any, tmp_path: Path) -> None:
    reason = targets.obstacle(targets.ALL[target.removesuffix("-windows")])
    if reason:
        pytest.skip(reason)
    folder = folders(target)
    c_program(folder, target, folder / "program.exe")
    assert_right(outputs([str(WINE), "program.exe"], folder))


def test_a_dll_needs_the_system_alone(folders: Any, kept: Any) -> None:
    """One test for both models: two would wait in two processes for the C library that is compiled for the first."""
    data = (folders("x86-64-windows") / "images.dll").read_bytes()
    libraries = {name.lower() for name in re.findall(rb"[\w.-]+\.dll", data, re.IGNORECASE)} - {b"images.dll"}
    assert libraries and all(name == b"kernel32.dll" or name.startswith(b"api-ms-win-") for name in libraries)
    exported = {name.decode() for name in re.findall(rb"\0(images_\w+)(?=\0)", data)}
    assert exported >= {f"images_{name}" for name in FUNCTIONS}
    listed = (folders("x86-64-windows") / "images.def").read_text().split("EXPORTS")[1].split()
    assert listed == [f"images_{name}" for name in FUNCTIONS]
    assert b"\0VirtualUnlock\0" in (kept[0] / "kept.dll").read_bytes()  # lets go of the first values of states


KEPT = 1280, 1024  # rows of a state, the first values of which are most of a weights file: 5 MiB, which is mapped


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray[Any, Any]]:
    """A model for Windows that adds its input to each row of a state and returns the sum over rows; and the first
    values."""
    first = np.random.default_rng(0).integers(-8, 8, KEPT).astype(np.float32)
    x, table = ir.input_("x", KEPT[1:], f32), ir.input_("table", KEPT, f32)
    added = ir.binary(ops.ADD, table, x)
    state = ir.State(table, "table.next", ir.constant(first))
    outputs = (("y", ir.reduce(ops.SUM_REDUCE, added, [0])), ("table.next", added))
    made = luminal.compile(ir.Graph("kept", (x, table), outputs, states=(state,)), target="x86-64-windows")
    folder = tmp_path_factory.mktemp("kept")
    assert isinstance(made, Module)
    made.export(folder, python_module=False)
    c_program(folder, "x86-64-windows", folder / "program.exe", "kept")
    return folder, first


@pytest.mark.skipif(WINE is None, reason="needs wine: install Debian's package wine64")
def test_a_dll_reads_the_first_values_of_states_again(kept: Any) -> None:
    """After they were let go of, a reset finds them in the file."""
    folder, first = kept
    x = np.arange(KEPT[1], dtype=np.float32)
    x.tofile(folder / "x.bin")
    run([str(WINE), "program.exe", "x.bin", "y.bin", str(KEPT[1])], folder=folder)
    once = first.sum(0) + KEPT[0] * x
    np.testing.assert_array_equal(
        np.fromfile(folder / "y.bin", np.float32).reshape(3, -1), [once, once + KEPT[0] * x, once]
    )


# ---- macOS and musl --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "architecture"), [("aarch64-macos", "arm64"), ("x86-64-macos", "x86_64")])
def test_a_dylib_needs_the_system_alone(target: str, architecture: str, folders: Any, tmp_path: Path) -> None:
    dylib = MachO((folders(target) / "libimages.dylib").read_bytes())
    assert dylib.architecture == architecture and dylib.oldest_system == (14, 0)
    assert dylib.install_name == "@rpath/libimages.dylib" and dylib.libraries == ["/usr/lib/libSystem.B.dylib"]
    assert dylib.exports - {"___dso_handle", "__mh_dylib_header"} == {f"_images_{name}" for name in FUNCTIONS}
    assert dylib.signed or architecture != "arm64"  # the system starts no other code for arm64
    c_program(folders(target), target, tmp_path / "program")


def test_a_library_for_musl_needs_its_c_library_alone(folders: Any, tmp_path: Path) -> None:
    folder = folders("x86-64-musl")
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", folder / "libimages.so"])))
    assert needed == {"libc.so"} and "GLIBC" not in run(["readelf", "-V", folder / "libimages.so"])
    found = set(re.findall(r" T (\w+)", run(["nm", "-D", folder / "libimages.so"])))
    assert found == {f"images_{name}" for name in FUNCTIONS}
    c_program(folder, "x86-64-musl", tmp_path / "program")


# ---- RISC-V ----------------------------------------------------------------------------------------------------------

RISCV = emulation.missing(targets.RISCV64)


def test_a_library_for_risc_v_has_vectors_and_needs_its_c_library_alone(folders: Any) -> None:
    library = folders("riscv64") / "libimages.so"
    assert "RISC-V" in run(["readelf", "-h", library]) and "v1p0" in run(["readelf", "-A", library])
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", library])))
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}
    with pytest.raises(OSError, match="compiled for riscv64, and this machine is"):
        loader.load(folders("riscv64"))


@pytest.mark.skipif(bool(RISCV), reason=RISCV)
def test_a_library_for_risc_v_computes_the_model_or_says_what_is_missing(folders: Any, tmp_path: Path) -> None:
    folder = folders("riscv64")
    c_program(folder, "riscv64", folder / "program", extra=["-Wl,-rpath,$ORIGIN"])
    assert_right(outputs([*emulation.command(targets.RISCV64), "./program"], folder))
    plain = [word for word in emulation.command(targets.RISCV64) if word != "-cpu" and not word.startswith("rv64")]
    done = subprocess.run(
        [*plain, "./program", "x.bin", "y.bin", str(BATCH)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "machines with v, which this one lacks" in done.stderr


# ---- what is said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "system", "place"),
    [("wasm32", "WebAssembly", "in a page or in Node"), ("x86-64-windows", "Windows", "from a program for Windows")],
)
def test_elsewhere_it_is_refused_with_a_reason(target: str, system: str, place: str, folders: Any) -> None:
    with pytest.raises(TargetError, match="it is for"):
        compiled(target)(source()[1])
    with pytest.raises(OSError, match=f"compiled for {system}, and this machine runs Linux: load it {place}"):
        loader.load(folders(target))
    assert not list(folders(target).glob("images.*.so"))  # no Python module


def test_the_list_says_where_there_is_no_python_module() -> None:
    rows = {machine.name: machine for machine in machines.machines()}
    assert set(rows) == {*targets.ALL, *targets.ABROAD, *targets.GPUS}
    assert rows["avx2-windows"].called_from == rows["aarch64-macos"].called_from == "C, C++"
    assert rows["wasm32"].called_from == "JavaScript" and "Python" in rows["x86-64"].called_from
    assert "does not run here: it is for macos" in rows["aarch64-macos"].here
    if WINE is not None:
        assert rows["x86-64-windows"].here == "luminal diff runs it under wine"


def test_every_system_has_its_targets() -> None:
    assert {target.system for target in targets.ABROAD.values()} | {"linux"} == set(platforms.ALL)
    for target in targets.ABROAD.values():
        assert toolchain.find(target.architecture, platforms.ALL[target.system]).version
