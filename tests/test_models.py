"""The zoo's models, compiled: real widths and few layers (MiniLM whole), from PyTorch and from ONNX, against both."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import luminal
from benchmarks import zoo
from luminal.core.errors import InputError
from luminal.module import Module
from luminal.specialised import Specialised
from tests.compiled_support import DIMS, WIDTH, Array, SmallEncoder, arguments, assert_same_bits, error

TOLERANCE = 1e-5  # of the largest reference value
Inputs = tuple[torch.Tensor, ...]


# ---- real widths -----------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A model, and inputs of the sizes that its library is asked for."""

    build: Callable[[], zoo.Model]
    inputs: Callable[[int, int], Inputs]
    sizes: tuple[tuple[int, int], ...]
    kernels: int  # more than this, and identical layers no longer share theirs


def images(size: int) -> Callable[[int, int], Inputs]:
    return lambda batch, _: (torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(batch)),)


def spectra(batch: int, _: int) -> Inputs:
    return (torch.randn(batch, 80, 66, generator=torch.Generator().manual_seed(batch)),)


def step(batch: int, past: int) -> Inputs:
    """A token, and one layer's keys and values of ``past`` others."""
    generator = torch.Generator().manual_seed(batch * 100 + past)
    cache = (torch.randn(batch, 4, past, 64, generator=generator) for _ in range(2))
    return torch.randint(0, 32000, (batch, 1), generator=generator), *cache


CASES = {
    "minilm": Case(
        zoo.minilm, lambda b, s: zoo.sentences(b, s, 30522), ((1, 1), (2, 16), (3, 37), (32, 5), (1, 256)), 30
    ),
    "gpt2": Case(lambda: zoo.gpt2(1), lambda b, s: zoo.sentences(b, s, 50257)[:2], ((1, 1), (2, 21)), 30),
    "resnet50": Case(lambda: zoo.resnet50((1, 2, 1, 1), size=96), images(96), ((1, 0), (2, 0), (5, 0)), 60),
    "mobilenet": Case(lambda: zoo.mobilenet(False, size=96), images(96), ((1, 0), (3, 0)), 50),
    "convnext": Case(lambda: zoo.convnext((1, 1, 1, 1), size=64), images(64), ((1, 0), (3, 0)), 40),
    "vit": Case(lambda: zoo.vit(1, size=64), images(64), ((1, 0), (3, 0)), 30),
    "whisper": Case(lambda: zoo.whisper_encoder(1, positions=33), spectra, ((1, 0), (3, 0)), 30),
    "tinyllama": Case(
        lambda: zoo.tinyllama(layers=2), lambda b, s: zoo.sentences(b, s, 32000)[:2], ((1, 1), (2, 16), (1, 70)), 40
    ),
    "tinyllama_step": Case(lambda: zoo.tinyllama_step(1), step, ((1, 1), (2, 37), (1, 1023)), 40),
}


@pytest.fixture(autouse=True)
def one_model_on_disk(passing_cache: Path) -> Iterator[None]:
    """What a test compiles goes when it ends: the models together take some gigabytes."""
    folder = passing_cache / "models"
    kept = set(folder.glob("*"))
    yield
    for path in set(folder.glob("*")) - kept:
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def models() -> Callable[[str], zoo.Model]:
    """Each model, made once for both of its tests."""
    made: dict[str, zoo.Model] = {}

    def get(name: str) -> zoo.Model:
        if name not in made:
            made.clear()  # one at a time: a decoder layer's weights and embeddings take most of a gigabyte
            made[name] = CASES[name].build()
        return made[name]

    return get


def references(model: zoo.Model, inputs: Inputs) -> list[Array]:
    with torch.no_grad():
        result = model.module(*inputs)
    arrays = [tensor.numpy() for tensor in (result if isinstance(result, tuple) else (result,))]
    # An answer of zeros, or of one number everywhere, must not pass for right.
    assert all(array.std() > 0.02 and np.abs(array).max() > 0.1 for array in arrays)
    return arrays


def assert_close(found: Any, expected: list[Array]) -> None:
    values = found if isinstance(found, tuple) else (found,)
    for value, reference in zip(values, expected, strict=True):
        assert error(np.asarray(value), reference) <= TOLERANCE


def check_sharing(module: Module, limit: int) -> None:
    kernels = module.manifest["kernels"]
    assert 5 < len(kernels) < limit, "identical layers share their kernels"


@pytest.mark.parametrize("name", CASES)
def test_from_pytorch(name: str, models: Callable[[str], zoo.Model]) -> None:
    case, model = CASES[name], models(name)
    module = luminal.compile(model.module, model.inputs, dims=model.dims, name=name)
    assert isinstance(module, Module)
    check_sharing(module, case.kernels)
    for size in case.sizes:
        inputs = case.inputs(*size)
        expected = references(model, inputs)
        found = module(*inputs)
        assert isinstance(found, tuple) == (len(expected) > 1)
        assert all(isinstance(value, torch.Tensor) for value in (found if isinstance(found, tuple) else (found,)))
        assert_close(found, expected)
    one, two = (luminal.load(module.folder, threads=threads) for threads in (1, 2))
    arrays = [value.numpy() for value in case.inputs(*case.sizes[1])]
    assert_same_bits(one.library.run(arrays), two.library.run(arrays))


@pytest.mark.parametrize("name", CASES)
def test_from_onnx(name: str, models: Callable[[str], zoo.Model], tmp_path: Path) -> None:
    case, model = CASES[name], models(name)
    path = zoo.to_onnx(model, tmp_path / f"{name}.onnx")
    module = luminal.compile(path, dims=model.bounds, name=name)
    assert isinstance(module, Module)
    check_sharing(module, case.kernels)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for size in case.sizes:
        inputs = case.inputs(*size)
        arrays = dict(zip(module.input_names, (value.numpy() for value in inputs), strict=True))
        found = module(**arrays)
        assert all(isinstance(value, np.ndarray) for value in (found if isinstance(found, tuple) else (found,)))
        assert_close(found, references(model, inputs))
        assert_close(found, session.run(None, arrays))
    for file in tmp_path.iterdir():
        file.unlink()  # the weights are large, and pytest keeps its folders


@pytest.mark.parametrize("name", ["vit", "tinyllama_step"])
def test_of_one_size(name: str, models: Callable[[str], zoo.Model]) -> None:
    """Without symbolic dimensions: sizes are the examples' own, and others are refused."""
    case, model = CASES[name], models(name)
    module = luminal.compile(model.module, model.inputs, name=name)
    assert isinstance(module, Module) and not module.library.dims
    assert_close(module(*model.inputs), references(model, model.inputs))
    with pytest.raises(ValueError, match="expected 2"):
        module(*case.inputs(3, 16))


# ---- behaviour of a module, on a small model -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(passing_cache: Path) -> tuple[SmallEncoder, Module]:
    model = SmallEncoder().eval()
    module = luminal.compile(model, arguments(), dims=DIMS, name="small")
    assert isinstance(module, Module)
    return model, module


def compare(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Outputs of a SmallEncoder: nested as the model's own."""
    assert list(found) == ["tokens", "pooled", "width"] and found["width"] == expected["width"] == WIDTH
    assert isinstance(found["pooled"], tuple) and len(found["pooled"]) == 2
    tokens, (mean, best) = expected["tokens"].detach(), expected["pooled"]
    assert tokens.std() > 0.3
    assert error(np.asarray(found["tokens"]), tokens.numpy()) <= TOLERANCE
    assert error(np.asarray(found["pooled"][0]), mean.detach().numpy()) <= TOLERANCE
    np.testing.assert_array_equal(np.asarray(found["pooled"][1]), best.numpy())


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (4, 8), (3, 1)])
def test_every_size_within_the_bounds(small: tuple[SmallEncoder, Module], size: tuple[int, int]) -> None:
    model, module = small
    compare(module(*arguments(*size)), model(*arguments(*size)))


def test_torch_for_torch_and_numpy_for_numpy(small: tuple[SmallEncoder, Module]) -> None:
    model, module = small
    ids, weight = arguments()
    by_torch, by_numpy = module(ids, weight=weight), module(ids=ids.numpy(), weight=weight.numpy())
    compare(by_torch, model(ids, weight))
    compare(by_numpy, model(ids, weight))
    assert isinstance(by_torch["tokens"], torch.Tensor) and by_torch["pooled"][1].dtype == torch.int64
    assert type(by_numpy["tokens"]) is np.ndarray and by_numpy["tokens"].dtype == np.float32
    assert isinstance(module(ids, weight.numpy())["tokens"], torch.Tensor)


def test_memory_of_arguments_and_results(small: tuple[SmallEncoder, Module]) -> None:
    """Any strides are accepted; arguments that ask for a gradient, too; results are never overwritten."""
    model, module = small
    ids, weight = arguments(4, 8)
    expected = model(ids, weight)
    strided = ids.t().contiguous().t()
    assert not strided.is_contiguous()
    first = module(strided, weight.clone().requires_grad_())
    module(*arguments(3, 7))
    compare(first, expected)
    compare(module(np.asfortranarray(ids.numpy()), np.repeat(weight.numpy(), 2, 1)[:, ::2]), expected)


def test_two_threads_at_once(small: tuple[SmallEncoder, Module]) -> None:
    _, module = small
    calls = [arguments(batch, 8) for batch in (1, 2, 3, 4)]
    expected = [module(*call)["tokens"] for call in calls]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(100):
            if not torch.equal(module(*calls[number])["tokens"], expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_module_describes_itself(small: tuple[SmallEncoder, Module]) -> None:
    _, module = small
    assert module.input_names == ["ids", "weight"]
    assert "ids: int64['batch', 'length']" in repr(module)
    assert set(module.seconds) >= {"import", "compile", "compile: simplification", "compile: arrangement", "render"}
    assert module.graph is not None and luminal.load(module.folder).graph is None


# ---- compiled at the first call --------------------------------------------------------------------------------------


class Counted(nn.Module):
    """Counts how often it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.traced = 0
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        self.traced += 1
        y = self.linear(x.float())
        return y if scale is None else y * scale


def test_compiled_at_the_first_call() -> None:
    torch.manual_seed(0)
    model = Counted().eval()
    module = luminal.compile(model, name="counted")
    assert isinstance(module, Specialised) and model.traced == 0
    x = torch.randn(3, 6)
    for argument in (x, x + 1, x * 2):
        torch.testing.assert_close(module(argument), model.linear(argument).detach(), rtol=1e-5, atol=1e-5)
    assert len(module.modules) == 1
    # New sizes, ranks, types and arguments each need a library of their own; sizes seen before do not.
    for changed in (x[:2], x[None], x.double(), x, x[:2]):
        torch.testing.assert_close(module(changed), model.linear(changed.float()).detach(), rtol=1e-5, atol=1e-5)
    assert len(module.modules) == 4
    scale = torch.tensor(2.0)
    for found in (module(x, scale), module(x, scale=scale)):
        torch.testing.assert_close(found, model.linear(x).detach() * 2, rtol=1e-5, atol=1e-5)
    assert len(module.modules) == 5
    with pytest.raises(InputError, match="tensors of its first call"):
        module()


def test_declared_sizes_are_compiled_once() -> None:
    torch.manual_seed(0)
    model = Counted().eval()
    module = luminal.compile(model, dims={"x": {0: "rows"}, "rows": (1, 8)}, name="rows")
    assert isinstance(module, Specialised)
    for rows in (3, 1, 8, 5):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(module(x), model.linear(x).detach(), rtol=1e-5, atol=1e-5)
    assert len(module.modules) == 1
    with pytest.raises(luminal.LuminalError, match="rows"):
        module(torch.randn(9, 6))


# ---- types -----------------------------------------------------------------------------------------------------------


class Nested(nn.Module):
    """A dictionary in; lists, tuples and one value twice out."""

    def forward(self, parts: dict[str, torch.Tensor], pair: list[torch.Tensor]) -> Any:
        total = parts["a"] + parts["b"]
        return [total, (pair[0] * 2, {"again": total})], pair[1]


def test_nested_arguments_and_results() -> None:
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    model = Nested().eval()
    module = luminal.compile(model, ({"a": a, "b": b}, [a, b]), name="nested")
    (total, (double, again)), same = module({"a": b, "b": b}, [a, b])
    (total_, (double_, again_)), same_ = model({"a": b, "b": b}, [a, b])
    for found, expected in ((total, total_), (double, double_), (again["again"], again_["again"]), (same, same_)):
        assert torch.equal(found, expected)
    with pytest.raises(InputError, match=r"pair: expected a list of 2"):
        module({"a": a, "b": b}, [a])


class Difference(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a - b


def test_one_tensor_given_as_two_examples() -> None:
    """An example says what an input is like, not that two inputs are always the same."""
    x = torch.ones(3)
    module = luminal.compile(Difference().eval(), (x, x), name="difference")
    assert torch.equal(module(x * 5, x * 2), x * 3)


@pytest.mark.parametrize(
    ("dtype", "numpy"), [(torch.float16, np.float16), (torch.bfloat16, ml_dtypes.bfloat16), (torch.float64, np.float64)]
)
def test_other_float_types(dtype: torch.dtype, numpy: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 33), nn.GELU(), nn.LayerNorm(33)).to(dtype).eval()
    x = torch.randn(5, 16).to(dtype)
    module = luminal.compile(model, (x,), name="typed")
    found, expected = module(x), model(x)
    assert found.dtype == dtype and expected.std() > 0.5
    tolerance = 8 * torch.finfo(dtype).eps
    assert (found.double() - expected.double()).abs().max() <= tolerance * expected.double().abs().max()
    array = x.view(torch.int16).numpy().view(numpy) if dtype == torch.bfloat16 else x.numpy()
    assert isinstance(module, Module)
    assert module.library.run([array])[0].dtype == numpy
