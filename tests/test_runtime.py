"""The runtime from Python: the loader and binding, on the hand-written library of tests/native."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from luminal.runtime import loader
from tests import runtime_example
from tests.runtime_example import Example


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return runtime_example.build(tmp_path_factory.mktemp("example"), "example_a")


@pytest.fixture(scope="module")
def library(example: Example) -> loader.Library:
    return loader.load(example.library, threads=2)


def scores_of(example: Example, x: NDArray[np.float32]) -> NDArray[np.float32]:
    return (x * x) @ example.table.T + example.bias


def test_describes_itself(library: loader.Library) -> None:
    assert library.name == "example_a"
    assert library.dims == (loader.Dim("rows", 1, 64), loader.Dim("tail", 0, 4))
    embed, score, negate = library.entries
    assert embed.inputs[0] == loader.TensorSpec("ids", np.dtype(np.int64), ("rows",))
    assert embed.inputs[1].shape == ()
    assert score.outputs[1].shape == ("8*rows + tail",)
    assert score.structure == [0, 1]
    assert negate.inputs[1].dtype == ml_dtypes.bfloat16
    assert "example_a" in repr(library)


def test_entries_share_a_weight(example: Example, library: loader.Library) -> None:
    ids = np.array([3, 1, 15])
    (rows,) = library.run([ids, 2.0 * np.ones((), np.float32)])
    np.testing.assert_array_equal(rows, 2 * example.table[ids])
    scores, joined = library.run({"tail": np.float32([5, 6]), "x": rows}, "score")
    np.testing.assert_allclose(scores, scores_of(example, rows), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(joined, [*rows.ravel(), 5, 6])


@pytest.mark.parametrize("rows", [1, 2, 63, 64])
@pytest.mark.parametrize("tail", [0, 4])
def test_dims_at_their_bounds(example: Example, library: loader.Library, rows: int, tail: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 8), dtype=np.float32)
    scores, joined = library.run([x, np.ones(tail, np.float32)], 1)
    assert joined.shape == (8 * rows + tail,)
    np.testing.assert_allclose(scores, scores_of(example, x), rtol=1e-5, atol=1e-5)


def test_sixteen_bit_floats(library: loader.Library) -> None:
    half = np.array([0.0, -1.5, np.inf], np.float16)
    brain = np.array([1.0, -0.0, 3.5], ml_dtypes.bfloat16)
    minus_half, minus_brain = library.run([half, brain, np.array([True, True, False])], "negate")
    assert (minus_half.dtype, minus_brain.dtype) == (half.dtype, brain.dtype)
    np.testing.assert_array_equal(minus_half.view(np.uint16), [0x8000, 0x3E00, 0x7C00])
    np.testing.assert_array_equal(minus_brain.view(np.uint16), [0xBF80, 0x0000, 0x4060])


def test_profile_tells_steps_apart(example: Example, library: loader.Library) -> None:
    profiled = loader.load(example.library, threads=2, profile=True)
    x = np.ones((5, 8), np.float32)
    for _ in range(2):
        outputs, times = profiled.profile([x, np.ones(2, np.float32)], "score")
        assert [time.step for time in times] == [1, 2, 3]  # in the numbering of the whole model
        assert all(0 <= time.seconds < 60 for time in times)
        np.testing.assert_array_equal(outputs[0], library.run([x, np.ones(2, np.float32)], "score")[0])
    with pytest.raises(RuntimeError, match="was not opened for this"):
        library.profile([x, np.ones(2, np.float32)], "score")


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
        lambda x: np.ascontiguousarray(x)[...],
    ],
    ids=["fortran", "every other", "reversed", "misaligned", "contiguous"],
)
def test_any_memory_layout(example: Example, library: loader.Library, arrange: Callable[[Any], Any]) -> None:
    x = np.random.default_rng(1).standard_normal((5, 8), dtype=np.float32)
    scores, _ = library.run([arrange(x), np.zeros(0, np.float32)], "score")
    np.testing.assert_allclose(scores, scores_of(example, x), rtol=1e-5, atol=1e-5)


ONE = np.float32(1)
X = np.zeros((2, 8), np.float32)
TAIL = np.zeros(0, np.float32)


@pytest.mark.parametrize(
    ("entry", "inputs", "message"),
    [
        ("embed", [np.zeros(2, np.int32), ONE], 'input "ids" has element type int32'),
        ("embed", [np.zeros(2, ">i8"), ONE], 'input "ids" is in the byte order of other machines, >i8'),
        ("embed", [np.array(["a", "b"]), ONE], 'input "ids" has element type text'),
        ("embed", [np.array([None, 1]), ONE], 'input "ids" holds objects: expected numbers or texts, found NoneType'),
        ("embed", [np.zeros((2, 1), np.int64), ONE], 'input "ids" has rank 2, expected rank 1'),
        ("embed", [np.zeros(0, np.int64), ONE], 'size 0, outside the bounds 1..64 of "rows"'),
        ("embed", [np.zeros(65, np.int64), ONE], 'size 65, outside the bounds 1..64 of "rows"'),
        ("embed", [np.zeros(2, np.int64)], 'entry "embed" takes 2 inputs, but 1 were given'),
        ("score", [X, np.zeros(5, np.float32)], 'input "tail", axis 0, has size 5'),
        ("score", [X[:, :7], TAIL], 'input "x", axis 1, has size 7, expected 8'),
        ("score", {"x": X}, "missing: tail"),
        ("score", {"x": X, "tail": TAIL, "more": TAIL}, "unknown: more"),
        ("nothing", [], "no entry is named 'nothing'; 'example_a' has embed, score, negate"),
        (3, [], "entry 3 does not exist"),
        (-1, [], "entry -1 does not exist"),
    ],
)
def test_bad_input_is_refused(library: loader.Library, entry: str | int, inputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        library.run(inputs, entry)


def test_index_out_of_range(library: loader.Library) -> None:
    with pytest.raises(IndexError, match=r"in step 0 of entry \"embed\": Gather '/embeddings/Gather' \(example.py:3\)"):
        library.run([np.array([1, 16]), ONE])
    library.run([np.array([1, 15]), ONE])


def test_results_do_not_depend_on_the_threads(example: Example) -> None:
    x = np.random.default_rng(2).standard_normal((61, 8), dtype=np.float32)
    results = [loader.load(example.library, threads=count).run([x, TAIL], "score")[0] for count in (1, 2, 3)]
    for result in results[1:]:
        np.testing.assert_array_equal(results[0], result)


def test_two_threads_at_once(example: Example, library: loader.Library) -> None:
    inputs = [np.random.default_rng(seed).standard_normal((64, 8), dtype=np.float32) for seed in range(4)]
    expected = [library.run([x, TAIL], "score")[0] for x in inputs]
    wrong: list[int] = []

    def call(index: int) -> None:
        for _ in range(300):
            if not np.array_equal(library.run([inputs[index], TAIL], "score")[0], expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_works_alone(library: loader.Library) -> None:
    x = np.ones((64, 8), np.float32)
    library.run([x, TAIL], "score")
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run here: leave at once, with what happened as the status.
        status = 1
        try:
            status = 0 if library.run([x, TAIL], "score")[0].shape == (64, 16) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_loads_a_folder_and_a_manifest(example: Example, tmp_path: Path) -> None:
    shutil.copy(example.library, tmp_path / "renamed.so")
    shutil.copy(example.weights, tmp_path / "elsewhere.bin")
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"name": "example_a", "library": "renamed.so", "weights": "elsewhere.bin"}))
    for path in (tmp_path, manifest):
        (rows,) = loader.load(path).run([np.array([4]), ONE])
        np.testing.assert_array_equal(rows, example.table[[4]])
    manifest.write_text("{}")
    with pytest.raises(OSError, match='must be an object with "name" and "library"'):
        loader.load(tmp_path)
    manifest.write_text("not json")
    with pytest.raises(OSError, match="is not JSON"):
        loader.load(manifest)


def test_what_is_no_library(example: Example, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no library at"):
        loader.load(tmp_path / "libmissing.so")
    with pytest.raises(OSError, match="cannot load the library"):
        loader.load(example.objects[0], name="example_a")
    with pytest.raises(OSError, match="does not export other_abi_version"):
        loader.load(example.library, name="other")
    with pytest.raises(ValueError, match="threads is -1"):
        loader.load(example.library, threads=-1)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.999])
def test_a_library_that_is_cut_short_is_refused(example: Example, tmp_path: Path, part: float) -> None:
    """To map it and touch what is not there would end the process."""
    whole = example.library.read_bytes()
    path = tmp_path / example.library.name
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(OSError, match=f"is truncated: it has {int(len(whole) * part)} of {len(whole)} bytes"):
        loader.load(path)


def test_a_machine_without_the_instruction_set(tmp_path: Path) -> None:
    example = runtime_example.build(tmp_path, "example_a", missing_feature="avx9")
    with pytest.raises(RuntimeError, match="was compiled for machines with avx9, which this one lacks"):
        loader.load(example.library)


def test_bad_weights_are_refused(example: Example, tmp_path: Path) -> None:
    good = example.weights.read_bytes()
    path = tmp_path / "bad.weights"

    def expect(content: bytes, message: str) -> None:
        path.write_bytes(content)
        with pytest.raises(OSError, match=message):
            loader.load(example.library, weights=path)

    expect(b"", "is truncated: it has 0 bytes")
    expect(good[:40], "is truncated: it has 40 bytes")
    expect(good[:4096], "is truncated: it has 4096 of 4672 bytes")
    expect(good[:-1], "is truncated: it has 4671 of 4672 bytes")
    expect(b"\x7fELF" + good[4:], "is not a weights file of luminal")
    expect(good[:8] + b"\x03" + good[9:], "has format version 3, this library reads 2")
    expect(good[:20] + b"?" + good[21:], 'belongs to another build than this library of "example_a"')
    expect(good[:48] + b"?" + good[49:], "belongs to another build")
    for place in (64, 4096, 4400, 4671):  # the checksum, and what it is of
        expect(good[:place] + bytes([good[place] ^ 0x40]) + good[place + 1 :], "is damaged: its bytes are not those")
    expect(good[:3000] + b"?" + good[3001:], "is damaged: byte 3000 of its header is not zero")
    path.unlink()
    with pytest.raises(OSError, match=r"cannot open the weights file .*: No such file or directory"):
        loader.load(example.library, weights=path)
    with pytest.raises(OSError, match="cannot read the weights file"):
        loader.load(example.library, weights=tmp_path)
    shutil.copy(example.library, tmp_path / example.library.name)
    with pytest.raises(OSError, match=f'cannot open the weights file "{tmp_path / "example_a.weights"}"'):
        loader.load(tmp_path / example.library.name)
