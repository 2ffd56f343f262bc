"""Models that are compiled when they are called, as the arguments of a call decide what there is to compile."""

from __future__ import annotations

import inspect
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from luminal import structure, tensors
from luminal.core import texts
from luminal.core.errors import InputError, LuminalError
from luminal.module import Module

Compile: TypeAlias = Callable[..., Any]  # ``luminal.compile``
Values: TypeAlias = Mapping[str, NDArray[Any]]


class Specialised(ABC):
    """A model that is compiled when it is called, once for each combination of what cannot vary within one library:
    ``module(*args)`` is the compiled Module of a call. All of them have one state: each call finds what the last one
    left. Sizes that ``dims`` declares may vary freely.

    ``PerSignature`` is such a PyTorch module, ``PerValue`` such an ONNX model."""

    def __init__(self, model: Any, compiled: Compile, options: Mapping[str, Any]) -> None:
        self.model = model
        self.options = dict(options)
        self.modules: list[Module] = []
        self._compiled = compiled
        self._last: Module | None = None
        self._title = type(model).__name__

    def __repr__(self) -> str:
        return f"<luminal {self._title}, compiled when it is called; {len(self.modules)} so far>"

    @abstractmethod
    def module(self, *args: Any, **kwargs: Any) -> Module:
        """The compiled module that a call with these arguments uses."""

    @abstractmethod
    def export(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises LuminalError, which says what has to be given to ``luminal.compile``, so that there is one library."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model, compiling it first where no earlier compilation fits. Raises as ``compile`` and Module do."""
        return self._continued(self.module(*args, **kwargs))(*args, **kwargs)

    def _continued(self, module: Module) -> Module:
        """``module``, with the state that the last call left."""
        if self._last is not None and module is not self._last and module.interface.states:
            module.load_state(self._last.state)
        self._last = module
        return module


class PerSignature(Specialised):
    """A PyTorch module: a library for each combination of types, ranks and undeclared sizes."""

    def module(self, *args: Any, **kwargs: Any) -> Module:
        found = next((m for m in self.modules if m.accepts(*args, **kwargs)), None)
        if found is None:
            found = self._compile(args, kwargs)
            self.modules.append(found)
        return found

    def export(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError("export: expected a module compiled for inputs: give luminal.compile example inputs")

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Module:
        leaves = sys.modules["torch"].utils._pytree.tree_leaves((args, kwargs))
        if not any(tensors.is_torch(leaf) or isinstance(leaf, np.ndarray) for leaf in leaves):
            raise InputError("a module is compiled for the tensors of its first call; found none")
        signature = inspect.signature(self.model.forward)
        try:
            bound: Any = signature.bind(*args, **kwargs)
        except TypeError as error:
            found = f"{type(self.model).__name__}.forward{signature}"
            raise InputError(f"the arguments do not fit {found}: {error}") from error
        compiled = self._compiled(self.model, bound, **self.options)
        assert isinstance(compiled, Module)
        return compiled


class PerValue(Specialised):
    """An ONNX model of which inputs of a few numbers decide shapes or branches, so that it cannot be compiled without
    them: a library for each of their values. Sizes vary within their bounds, as in any ONNX model; but where the model
    cannot be compiled so even then, or a call goes beyond default bounds, the library is for the sizes of the call that
    ``dims`` does not declare.

    ``deciding`` are these inputs; ``reason`` is the error of a compilation without. ``names`` are all inputs, and
    ``sizes(shapes)`` the undeclared sizes of a call.
    """

    def __init__(
        self,
        model: Any,
        compiled: Compile,
        options: Mapping[str, Any],
        reason: LuminalError,
        names: Sequence[str],
        sizes: Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, int]],
    ) -> None:
        super().__init__(model, compiled, options)
        self.reason = reason
        self.deciding = list(reason.deciding)
        self._names = [name for name in names if name not in (options.get("constants") or {})]
        self._sizes = sizes
        self._values: list[dict[str, NDArray[Any]]] = []  # of the deciding inputs, by module
        self._title = options.get("name") or "ONNX model"
        self._lock = threading.Lock()  # threads may call at once: one compiles, the others wait for it

    def module(self, *args: Any, **kwargs: Any) -> Module:
        return self._found(self._arguments(args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self._arguments(args, kwargs)
        module = self._continued(self._found(arguments))
        return module(**{name: arguments[name] for name in module.input_names})

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run on arrays by name, as ``Module.run``."""
        arguments = self._arguments((), inputs)
        module = self._continued(self._found(arguments))
        return module.run({name: arguments[name] for name in module.input_names})

    def export(self, *args: Any, **kwargs: Any) -> NoReturn:
        if "constants=" in str(self.reason):
            raise self.reason
        values = ", ".join(f"{name!r}: array" for name in self.deciding)
        options = " ".join(f"--constant {name}=FILE.npy" for name in self.deciding)
        raise self.reason.saying(
            f"{self.reason}\nIf that does not hold for the values of {', '.join(map(repr, self.deciding))} that you "
            f"use, give them when compiling, constants={{{values}}} or {options}; and sizes, if they depend on them"
        ) from self.reason

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {argument.path: argument.value for argument in structure.bind({}, self._names, args, kwargs)}

    def _found(self, arguments: Mapping[str, Any]) -> Module:
        with self._lock:
            return self._fitting(arguments)

    def _fitting(self, arguments: Mapping[str, Any]) -> Module:
        for module, values in zip(self.modules, self._values, strict=True):
            rest = {name: arguments[name] for name in module.input_names}
            if all(_same(arguments[name], value) for name, value in values.items()) and module.accepts(**rest):
                return module
        return self.add(*self._compile(arguments))

    def add(self, module: Module, values: dict[str, NDArray[Any]]) -> Module:
        """``module``, which from now on serves calls that it accepts, with these ``values`` of the deciding inputs."""
        self.modules.append(module)
        self._values.append(values)
        return module

    def _compile(self, arguments: Mapping[str, Any]) -> tuple[Module, dict[str, NDArray[Any]]]:
        """The library for a call, and the values of the deciding inputs; others may turn out to decide, too."""
        shapes = {name: _array(value, name).shape for name, value in arguments.items()}
        fixed = self._sizes(shapes)
        while True:
            values = {name: _array(arguments[name], name) for name in self.deciding}
            rest = {name: value for name, value in arguments.items() if name not in values}
            module, refusal = self._attempt(values, {}) if values else (next(iter(self.modules), None), self.reason)
            if fixed and (module is None or not module.accepts(**rest)):
                module, refusal = self._attempt(values, fixed)
            if module is not None:
                return module, values
            assert refusal is not None
            others = [name for name in refusal.deciding if name not in self.deciding]
            if not others:
                raise refusal
            self.deciding += others

    def _attempt(self, values: Values, fixed: Mapping[str, int]) -> tuple[Module | None, LuminalError | None]:
        """The library with these values and sizes, or why there is none."""
        constants = {**(self.options.get("constants") or {}), **values}
        dims = {**(self.options.get("dims") or {}), **fixed}
        try:
            found = self._compiled(self.model, **{**self.options, "constants": constants, "dims": dims})
        except LuminalError as error:
            return None, error
        return (None, found.reason) if isinstance(found, PerValue) else (found, None)


def _array(value: Any, name: str) -> NDArray[Any]:
    """``value`` as numbers; texts as those by which libraries know them."""
    given = value if tensors.is_torch(value) else np.asarray(value)
    return (
        texts.encode(given)
        if isinstance(given, np.ndarray) and texts.is_texts(given)
        else tensors.to_numpy(given, name)
    )


def _same(given: Any, value: NDArray[Any]) -> bool:
    """Whether an argument is the one that a library was compiled for, to the bit."""
    array = _array(given, "")
    return array.dtype == value.dtype and array.shape == value.shape and array.tobytes() == value.tobytes()
