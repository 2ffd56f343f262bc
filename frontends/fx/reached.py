"""Tensors that ``forward`` reaches through plain objects, as what they are while PyTorch exports: buffers.

PyTorch's exporter follows the parameters and buffers of modules. A tensor in an attribute of another object, as in a
cache of keys and values, is a constant to it, even where a buffer of the module is the same tensor.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from luminal.core.errors import ModelError

# What holds no tensors of a model.
_CLOSED = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, str, bytes, int, float, complex, torch.dtype,
    torch.device, torch.Generator, torch.Size, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip
_OF_MODULES = frozenset(vars(torch.nn.Module()))  # attributes of PyTorch's own


@dataclass(frozen=True)
class _Slot:
    """A place in an object, a list or a dictionary that holds ``tensor``; ``name`` is the path to it."""

    name: str
    tensor: torch.Tensor
    get: Callable[[], Any]
    put: Callable[[Any], None]


@dataclass
class Reached:
    """``replaced`` names the tensors that are no buffers and in whose place ``forward`` put others, ``made`` the
    buffers that there are for this time only."""

    replaced: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)


@contextmanager
def as_buffers(model: torch.nn.Module, states: Collection[str] = (), every: bool = False) -> Iterator[Reached]:
    """While this lasts, ``forward`` finds the module's buffers in plain objects that hold the same tensors, or views of
    them. What it puts into the place of such a tensor is what it leaves in the buffer. Afterwards every object holds
    what it held.

    Tensors that are no buffers are buffers for that time, named by the path to them (``cache_layers_0_keys``): those of
    ``states``, or all with ``every``.

    Raises ModelError with ``every`` where a tensor overlaps a buffer in another way.
    """
    slots = _slots(model)
    buffers = dict(model.named_buffers(remove_duplicate=False))
    parameters = {id(tensor) for tensor in model.parameters()}
    owners = {id(buffer): name for name, buffer in buffers.items()}
    # The largest of the buffers that share a storage.
    storages = {_storage(b): name for name, b in sorted(buffers.items(), key=lambda item: item[1].numel()) if b.numel()}
    reached = Reached()
    sources: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = []  # of each slot
    for slot in slots:
        name = owners.get(id(slot.tensor)) or storages.get(_storage(slot.tensor), "")
        path = slot.name
        while hasattr(model, path):
            path += "_"
        if not name and (every or path in states) and id(slot.tensor) not in parameters:
            name = path
            buffers[name] = slot.tensor.detach()
            model.register_buffer(name, buffers[name], persistent=False)
            reached.made.append(name)
            owners[id(slot.tensor)] = storages[_storage(slot.tensor)] = name
        part = _part(slot.tensor, buffers[name]) if name else None
        if name and part is None and every:
            raise ModelError(_overlap(slot, name, buffers[name]))
        sources.append((name, part) if part is not None else ("", lambda buffer: buffer))
    try:
        with _forward(model, _bound(model, slots, sources, reached)):
            yield reached
    finally:
        for name in reached.made:
            delattr(model, name)


def _storage(tensor: torch.Tensor) -> int:
    """What tensors over the same memory have in common; those of no elements have their own."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided and tensor.numel() else -id(tensor)


def _part(tensor: torch.Tensor, buffer: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """From the buffer to the tensor that shares its memory, if that is a view of it."""
    size, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
    if tensor.dtype != buffer.dtype:
        return None
    if (size, stride, offset) == (buffer.shape, buffer.stride(), buffer.storage_offset()):
        return lambda buffer: buffer
    if buffer.storage_offset() or not buffer.is_contiguous():
        return None
    return lambda buffer: buffer.as_strided(size, stride, offset)


def _overlap(slot: _Slot, name: str, buffer: torch.Tensor) -> str:
    return (
        f"{slot.name}, which a plain object of the module holds: expected a view of the buffer {name!r}, "
        f"{buffer.dtype}{list(buffer.shape)}, with whose memory it overlaps, found "
        f"{slot.tensor.dtype}{list(slot.tensor.shape)}. Make the buffer the whole tensor, and the other a view of it"
    )


@contextmanager
def _forward(model: torch.nn.Module, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """The module with a ``forward`` that is ``around`` its own."""
    own = {"forward": model.forward} if "forward" in vars(model) else {}
    model.forward = around(model.forward)
    try:
        yield
    finally:
        del model.forward
        vars(model).update(own)


def _bound(
    model: torch.nn.Module, slots: Sequence[_Slot],
    sources: Sequence[tuple[str, Callable[[torch.Tensor], torch.Tensor]]], reached: Reached,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """A decorator: the slots hold buffers, as the module has them then, while the function runs."""

    def around(forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            held = [
                part(model.get_buffer(name)) if name else slot.tensor
                for slot, (name, part) in zip(slots, sources, strict=True)
            ]
            try:
                for slot, tensor in zip(slots, held, strict=True):
                    slot.put(tensor)
                result = forward(*args, **kwargs)
                for slot, tensor, (name, _) in zip(slots, held, sources, strict=True):
                    left = slot.get()
                    if left is not tensor and isinstance(left, torch.Tensor):
                        _leave(slot, tensor, left) if name else reached.replaced.append(slot.name)
                return result
            finally:
                for slot in slots:
                    slot.put(slot.tensor)

        return run

    return around


def _leave(slot: _Slot, tensor: torch.Tensor, left: torch.Tensor) -> None:
    if (left.dtype, left.shape) != (tensor.dtype, tensor.shape):
        raise ModelError(
            f"{slot.name}: expected a state of one type and size, found {tensor.dtype}{list(tensor.shape)} before "
            f"forward and {left.dtype}{list(left.shape)} after it. Give it its final size at first, and write into "
            "parts of it"
        )
    tensor.copy_(left)


def _slots(model: torch.nn.Module) -> list[_Slot]:
    """Every place of a tensor that attributes of the model's modules are or lead to."""
    found: list[_Slot] = []
    seen = {id(module) for module in model.modules()}
    for path, module in model.named_modules():
        for key, value in list(vars(module).items()):
            if key in _OF_MODULES:
                continue
            name = "_".join([*path.split("."), key]) if path else key
            if isinstance(value, torch.Tensor):
                found.append(_attribute(module, key, name, value))
            else:
                found += _inside(value, name, seen)
    return found


def _inside(start: Any, name: str, seen: set[int]) -> Iterator[_Slot]:
    """The places in all that ``start`` leads to, but for what was ``seen`` before."""
    waiting = [(start, name)]
    while waiting:
        value, name = waiting.pop()
        if value is None or isinstance(value, _CLOSED) or id(value) in seen:
            continue
        seen.add(id(value))
        for key, item, slot in _items(value):
            path = f"{name}_{''.join(c if c.isalnum() else '_' for c in str(key))}"
            if not isinstance(item, torch.Tensor):
                waiting.append((item, path))
            elif slot is not None:
                yield slot(value, key, path, item)


def _items(value: Any) -> Iterator[tuple[Any, Any, Callable[..., _Slot] | None]]:
    """What ``value`` holds under which key, and how a tensor there can be replaced."""
    if isinstance(value, types.MethodType):
        yield "self", value.__self__, None
    elif isinstance(value, functools.partial):
        yield from (("args", value.args, None), ("keywords", value.keywords, None))
    elif isinstance(value, dict):
        yield from ((key, item, _element) for key, item in list(value.items()))
    elif isinstance(value, list):
        yield from ((k, item, _element) for k, item in enumerate(value))
    elif isinstance(value, tuple | set | frozenset):
        yield from ((k, item, None) for k, item in enumerate(value))
    yield from ((key, item, _attribute) for key, item in list(getattr(value, "__dict__", {}).items()))
    for kind in type(value).__mro__:
        declared = vars(kind).get("__slots__", ())
        for key in (declared,) if isinstance(declared, str) else declared:
            if not key.startswith("__") and hasattr(value, key):
                yield key, getattr(value, key), _attribute


def _attribute(owner: Any, key: str, name: str, item: torch.Tensor) -> _Slot:
    put = functools.partial(object.__setattr__, owner, key)
    return _Slot(name, item, functools.partial(getattr, owner, key, None), put)


def _element(owner: Any, key: Any, name: str, item: torch.Tensor) -> _Slot:
    return _Slot(name, item, functools.partial(owner.__getitem__, key), functools.partial(owner.__setitem__, key))
