"""``luminal.compile_training``: a step of training as one library, with an entry to evaluate on the same parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal import (
    api,
    checkpoint,
    entries,
    launch,
    meshes,
    not_a_number,
    optim,
    pipelined_training,
    pipelines,
    sharded,
    structure,
    tensors,
)
from luminal.codegen import dialects, interface
from luminal.core import config, derivative, training
from luminal.core.decompose import losses, random
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node, constant
from luminal.core.mesh.divide import PIPELINE
from luminal.core.ops import EVERY
from luminal.core.target import Target, parse
from luminal.core.training import Parameter, Plan
from luminal.core.types import DType, f32, f64
from luminal.module import Module
from luminal.optim import Optimizer
from luminal.sharded import Sharding

TRAIN, ACCUMULATE, EVAL = "train", "accumulate", "eval"
STEP = "step"  # what PyTorch's optimisers call their count


@dataclass(frozen=True)
class Places:
    """Where a PyTorch module and its optimiser keep what the library has as state: tensors by the state's name, and the
    parameters of each group by theirs."""

    tensors: Mapping[str, str]  # the state's name -> the first name in the module
    groups: Sequence[Sequence[str]]  # states of the trained parameters of each group
    kept: Mapping[str, Sequence[str]]  # what an optimiser keeps of each


class Training:
    """A compiled step of training: call it as the model is called, with what the loss needs after the model's own
    arguments. It returns the loss, or the loss and the model's outputs, and leaves new parameters in its state.

    ``eval`` calls the model in evaluation mode on the same parameters. ``state`` has everything by name; ``save`` and
    ``load`` write and read it. ``module`` is the compiled library, which can be exported.
    """

    def __init__(
        self, module: Module, described: Mapping[str, Any], optimizer: Any, rates: Sequence[float],
        plan: Plan, places: Places | None, source: Any,
    ) -> None:  # fmt: skip
        self.module = module
        self.lr = list(rates)
        self._described, self._optimizer = described, optimizer
        self._plan, self._places, self._source = plan, places, source
        self._gathered = self._calls = 0
        self._fixed = _fixed(optimizer)
        self.check_nan = config.CHECK_NAN.value

    def __repr__(self) -> str:
        return f"<luminal training of {self.module.interface.name!r} with {', '.join(n for n, _ in self._plan.groups)}>"

    def __call__(self, *args: Any, lr: float | Sequence[float] | None = None, **kwargs: Any) -> Any:
        """One step. ``lr`` is the learning rate, or one for each group; without it, it is what the PyTorch optimiser
        that the step was compiled for has now, as a scheduler left it; or the attribute ``lr``.

        Where gradients of several calls are added up, every so many calls the parameters change. With a limit on the
        norm of gradients, ``gradient_norm`` of the last step is an attribute.

        With the attribute ``check_nan``, or LUMINAL_CHECK_NAN=1, a step whose loss is NaN raises FloatingPointError
        with the first operator that made one, and leaves everything as it was before.
        """
        rates = self._rates(lr)
        last = self._gathered + 1 == self._plan.accumulate
        entry = self.module[TRAIN if last else ACCUMULATE]
        names = [name for name in entry.input_names if name != training.RATES]
        arguments = structure.bind(self._described, names, args, kwargs)
        values = {name: tensors.to_numpy(a.numbers, name) for name, a in zip(names, arguments, strict=True)}
        if last:
            values[training.RATES] = rates
        before = self.state if self.check_nan else {}
        found = entry.run(values)
        if self.check_nan and np.isnan(next(iter(found.values()))).any():
            self.load_state(before)
            if entry.graph is None or "mesh" in self.module.manifest:
                raise FloatingPointError(
                    "the loss is NaN: compile the step without a mesh to see which operator made it"
                )
            raise FloatingPointError(not_a_number.first(entry.graph, {**before, **values}))
        self._gathered = 0 if last else self._gathered + 1
        self._calls += 1
        if training.NORM in found:
            self.gradient_norm = float(found.pop(training.NORM))
        results: list[Any] = list(found.values())
        if any(tensors.is_torch(a.value) for a in arguments):
            results = [tensors.to_torch(r) for r in results]
        return structure.rebuild(self._described, results)

    def _rates(self, lr: float | Sequence[float] | None) -> NDArray[Any]:
        if lr is None and self._optimizer is not None:
            _check_unchanged(self._fixed, _fixed(self._optimizer))
            lr = [float(group["lr"]) for group in self._optimizer.param_groups]
        lr = self.lr if lr is None else lr
        count = len(self._plan.groups)
        rates = (
            np.broadcast_to(np.asarray(lr, np.float64), (count,)) if np.ndim(lr) == 0 else np.asarray(lr, np.float64)
        )
        if rates.shape != (count,):
            raise InputError(f"lr: expected a learning rate for each of {count} groups, found {len(rates)}")
        return np.ascontiguousarray(rates, self._plan.shared.numpy)

    def eval(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs, in evaluation mode, on the present parameters. On a mesh all ranks call it."""
        return self.module[EVAL](*args, **kwargs)

    # ---- state -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of all that the steps change, by name: parameters and buffers under the module's names, what the
        optimiser keeps of a parameter under ``PARAMETER.WHAT``, counts of steps under ``optimizer.step``. On a mesh a
        rank has its part of some, as ``module.explain()`` says, and in a pipeline those of its stage."""
        return self.module.state

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Write into states by name; those that are not named stay. Nothing is written where one does not fit: raises
        InputError for a name that is not there, and for another type or shape."""
        known = {state.name: state for state in self.module.interface.states}
        arrays = {name: tensors.to_numpy(value, name) for name, value in values.items()}
        unknown = [name for name in arrays if name not in known]
        if unknown:
            raise InputError(f"state: there is no {unknown[0]!r}; there are {', '.join(known)}")
        for name, array in arrays.items():
            shape, dtype = tuple(known[name].shape), known[name].dtype
            if array.shape != shape or array.dtype != dtype:
                raise InputError(
                    f"{name}: expected {dtype}{list(shape)}, found {array.dtype}{list(array.shape)}; nothing was loaded"
                )
        self.module.load_state(arrays)

    def reset(self) -> None:
        """Begin again: everything is as it was when the step was compiled."""
        self.module.reset()
        self._gathered = self._calls = 0

    def seed(self, seed: int) -> None:
        """Draw dropout from ``seed`` from now on."""
        self.module.seed(seed)

    def save(self, path: str | Path) -> None:
        """Write all states to a file of safetensors. The file appears as a whole or not at all: where the save is
        interrupted, the previous one is left. On a mesh all ranks save, each its part, to a file with its number behind
        the name, and keep the files before (``.previous``)."""
        said = {"gathered": str(self._gathered)}
        sharding = self._sharding
        if sharding is None:
            checkpoint.save(path, self.state, said)
        else:
            sharding.save(Path(path), self.state, self._calls, said)

    def load(self, path: str | Path) -> None:
        """Read what ``save`` wrote, here or in a program in C, on as many ranks as it may be. Raises InputError, by
        name, where a state is missing or has another type or shape; then nothing has changed."""
        values, said = sharded.load(path)
        missing = sorted({state.name for state in self.module.interface.states} - set(values))
        if missing:
            raise InputError(f"{str(path)!r}: expected a state {missing[0]!r}, found none; it is of another model")
        self.load_state(self._own(values))
        self._gathered = int(said.get("gathered", "0"))
        self._calls = int(said.get(sharded.CALLS, "0"))

    @property
    def _sharding(self) -> Sharding | None:
        """How states lie on the ranks of the mesh, if there is one. Raises InputError where no launcher has said which
        rank this is."""
        manifest = self.module.manifest
        if "mesh" not in manifest:
            return None
        ranks, rank = math.prod(manifest["mesh"].values()), launch.rank()
        if rank is None:
            raise InputError(f"this step of training is for {ranks} ranks: start the program with `mpirun -n {ranks}`")
        cuts = {name: sharded.from_json(rows) for name, rows in manifest["sharded"].items()}
        stages = manifest.get("stages", {"states": {}, "stride": 0})
        firsts = {name: stage * stages["stride"] for name, stage in stages["states"].items() if stage != EVERY}
        return Sharding(ranks, rank, cuts, firsts)

    def _own(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What this rank has of whole states."""
        sharding = self._sharding
        if sharding is None:
            return dict(values)
        return {name: sharding.part(name, tensors.to_numpy(value, name)) for name, value in values.items()}

    def export(self, folder: str | Path, **options: Any) -> Path:
        """Write the library: see ``Module.export``. It begins with the parameters that it was compiled with; ``save``
        gives a file to go on from."""
        return self.module.export(folder, **options)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that a run takes, known before the first: ``state``, and of each entry the peak of all other values at
        the upper bounds of sizes. In a pipeline it is those of the ranks that need most."""
        stages = self.module.manifest.get("stages", {"states": {}})["states"]
        held = dict.fromkeys(sorted({EVERY, *stages.values()}), 0)
        for s in self.module.interface.states:
            size = math.prod(n for n in s.shape if isinstance(n, int)) * s.dtype.itemsize
            held[stages.get(s.name, EVERY)] += size
        state = held.pop(EVERY) + max(held.values(), default=0)
        return {"state": state, **{entry["name"]: entry["arena_bytes"] for entry in self.module.manifest["entries"]}}

    # ---- PyTorch -----------------------------------------------------------------------------------------------------

    def write_back(self, module: Any = None, optimizer: Any = None) -> None:
        """Put everything, bit for bit, into the PyTorch module and optimiser: parameters and buffers, and what the
        optimiser keeps of them. Without arguments, they are those that the step was compiled for."""
        places, module, optimizer = self._torch(module, optimizer)
        manifest = self.module.manifest
        parts = manifest.get("sharded")
        if parts or "stages" in manifest:
            has = f"a part of {next(iter(parts))!r} and others" if parts else "the parameters of its stage alone"
            raise InputError(
                f"write_back: a rank has {has}: save, and load into a step that is compiled without a mesh"
            )
        state = {name: tensors.to_torch(array) for name, array in self.state.items()}
        found = _tensors(module)
        for name, key in places.tensors.items():
            _same_shape(name, found[key], state[name])
        torch = __import__("torch")
        with torch.no_grad():
            for name, key in places.tensors.items():
                found[key].copy_(state[name])
        for number, names in enumerate(places.groups if optimizer is not None else ()):
            count = state.get(training.count_name(number, len(places.groups)))
            for name in names:
                kept = optimizer.state[found[places.tensors[name]]]
                if count is not None and self._plan.groups[number][0] != "SGD":
                    kept[STEP] = count.to(torch.float32)
                for what in places.kept[name]:
                    kept[what] = state[f"{name}.{what}"].clone()
                if count is not None and STEP not in kept and not int(count):
                    kept.clear()  # PyTorch takes the first gradient whole where there is no buffer

    def read_from(self, module: Any = None, optimizer: Any = None) -> None:
        """Take everything from the PyTorch module and optimiser: the opposite of ``write_back``."""
        places, module, optimizer = self._torch(module, optimizer)
        found = _tensors(module)
        state = {s.name: s for s in self.module.interface.states}
        values: dict[str, Any] = {name: found[key].detach() for name, key in places.tensors.items()}
        zeros: dict[str, Any] = {}
        for number, names in enumerate(places.groups if optimizer is not None else ()):
            counts: set[int] = set()
            for name in names:
                kept = optimizer.state.get(found[places.tensors[name]], {})
                empty = not kept or any(kept.get(what) is None for what in places.kept[name])
                for what in places.kept[name]:
                    if empty:
                        like = state[f"{name}.{what}"]
                        zeros[like.name] = np.zeros(tuple(like.shape), like.dtype)
                    else:
                        values[f"{name}.{what}"] = kept[what].detach()
                counts.add(0 if empty else int(kept.get(STEP, 1)))
            if len(counts) > 1:
                raise InputError(
                    f"optimizer: expected one count of steps in group {number}, found {sorted(counts)}: put parameters "
                    "that have had other steps into a group of their own"
                )
            count = training.count_name(number, len(places.groups))
            if count in state:
                values[count] = np.array(counts.pop(), np.int64)
        self.load_state({**self._own(values), **zeros})

    def _torch(self, module: Any, optimizer: Any) -> tuple[Places, Any, Any]:
        if self._places is None:
            raise InputError("this step was not compiled from a PyTorch module; use state and load_state")
        return self._places, self._source if module is None else module, optimizer or self._optimizer


def _fixed(optimizer: Any) -> list[dict[str, Any]]:
    """The options of each group of a PyTorch optimiser that a step has as constants."""
    groups = [] if optimizer is None else optimizer.param_groups
    return [{name: group[name] for name in optimizer.defaults if name != "lr" and name in group} for group in groups]


def _check_unchanged(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> None:
    """Raises InputError where options other than learning rates have changed since the step was compiled."""
    for number, (options, others) in enumerate(zip(before, now, strict=False)):
        for name, value in options.items():
            if others.get(name) != value:
                raise InputError(
                    f"optimizer: {name} of group {number} was {value} when the step was compiled, found "
                    f"{others.get(name)}: learning rates alone may change (OneCycleLR needs cycle_momentum=False)"
                )


def _tensors(module: Any) -> dict[str, Any]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _same_shape(name: str, tensor: Any, value: Any) -> None:
    if tuple(tensor.shape) != tuple(value.shape) or tensor.dtype != value.dtype:
        raise InputError(
            f"{name}: expected {value.dtype} {list(value.shape)}, found {tensor.dtype} {list(tensor.shape)} in the "
            "module"
        )


# ---- compiling -------------------------------------------------------------------------------------------------------


def compile_training(
    model: Any,
    loss: Callable[..., Any] | str | None,
    optimizer: Any,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    targets: Sequence[Any] = (),
    *,
    trainable: Sequence[str] | None = None,
    outputs: bool = False,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    dims: api.Dims | None = None,
    constants: api.Constants | None = None,
    name: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Training:
    """Compile a whole step of training: forward, backward, clipping, and the optimiser's update, in place.

    ``model`` is a PyTorch module, in the mode that it is in, as ``train()`` leaves it; ``inputs`` are examples of the
    arguments of its call. ``loss(output, *targets)`` gives one float, and ``targets`` are examples of what else it
    needs; without a ``loss`` the module's output is one, or has it in front, or as ``loss``. ``optimizer`` is one of
    ``torch.optim``, whose parameters are trained and whose others are constants of the library, or one of
    ``luminal.optim``, for all parameters that require gradients. With ``outputs`` a step returns the pair of the loss
    and what the module returned.

    Or ``model`` is an ONNX model, as ``luminal.compile`` takes it: ``trainable`` names the initialisers to train,
    ``loss`` is the name of an output that is one float, or a loss of ``luminal.core.decompose.losses`` of the first
    output and an input ``target``, and ``optimizer`` one of ``luminal.optim``. PyTorch is not needed.

    ``clip_norm`` and ``clip_value`` bound gradients as ``torch.nn.utils.clip_grad_norm_`` and ``clip_grad_value_`` do.
    With ``accumulate`` a step is taken by the mean gradient of so many calls. ``dims``, ``constants``, ``name``,
    ``seed`` (of dropout) and further ``options`` are those of ``luminal.compile``; ``precision="bf16"`` rounds what
    products read and leaves parameters float32. Along the axis ``pipeline`` of a ``mesh``, ranks have stages, which go
    forward and backward with ``micro_batches``, parts of the rows of a call, in turn; the step is taken by the mean of
    their gradients (see ``luminal.pipelined_training``).

    Raises InputError for an optimiser that luminal has no rule for, a parameter that is none of the module's or holds
    no floats, a loss that is not one float, limits that are not positive, and for what stages cannot train: rows that
    ``micro_batches`` do not divide, more stages than steps, sizes that data decides; UnsupportedError where an operator
    cannot be compiled or has no gradient, with its place in the model.
    """
    plan = _plan(clip_norm, clip_value, accumulate)
    plan = replace(plan, shared=_shared(options.get("target", "host")))
    mesh, shard = meshes.read(options.get("mesh"), options.get("shard", "auto"), model)
    options |= {} if mesh is None else {"mesh": mesh, "shard": shard}
    batches = pipelines.check_micro_batches(options.get("micro_batches", 1), mesh)
    cut = None if mesh is None or not pipelines.is_one(mesh) else (batches, pipelines.rows_asked(shard, mesh))
    if cut is not None and accumulate > 1:
        raise InputError(
            f"accumulate: expected 1 along {PIPELINE!r}, found {accumulate}: gradients of micro-batches are added up; "
            "give a step as many more rows, and take as many times micro_batches"
        )
    same: dict[str, Any] = {"dims": dims, "constants": constants, "name": name, "cut": cut}
    if api.is_module(model):
        if isinstance(loss, str):
            raise InputError("loss: a PyTorch module takes a function, found the name of one")
        if trainable is not None:
            raise InputError("trainable: a PyTorch optimiser, or requires_grad, says which parameters are trained")
        made, described, places, plan = _of_module(model, loss, optimizer, inputs, targets, outputs, plan, same)
    else:
        if inputs is not None or targets:
            raise InputError("training: an ONNX model says what its inputs are; leave out examples of them")
        made, described, plan = _of_onnx(model, loss, optimizer, trainable, outputs, plan, same)
        places = None
    compiled = api.compile(made, name=made[TRAIN].name, seed=seed, **options)
    assert isinstance(compiled, Module)
    own = optimizer if optim.is_torch(optimizer) else None
    rates = [float(group["lr"]) for _, group in plan.groups]
    training_ = Training(compiled, described, own, rates, plan, places, model)
    if own is not None and own.state:
        training_.read_from()
    return training_


def _of_module(
    module: Any, loss: Callable[..., Any] | None, optimizer: Any, example: Any, targets: Sequence[Any], outputs: bool,
    plan: Plan, same: Mapping[str, Any],
) -> tuple[dict[str, Graph], Mapping[str, Any], Places, Plan]:  # fmt: skip
    """The entries for a PyTorch module, the description of a step's arguments, and where the module has its states."""
    from luminal.frontends.fx import export, importer, stepping

    named = dict(module.named_parameters())
    if optim.is_torch(optimizer):
        optimizer = optim.of_torch(optimizer, {id(parameter): key for key, parameter in named.items()})
    plan, groups = _grouped(plan, optimizer, [key for key, p in named.items() if p.requires_grad], list(named))
    whole, given = stepping.with_loss(module, loss, example, targets, outputs)
    rows: Collection[str] = ()
    if same["cut"] is not None:
        given, rows = stepping.micro_batch(whole, given, *same["cut"])
    states = {key: key if key not in given else f"{key}.parameter" for key in groups}
    shared = stepping.aliases(module, states)
    known = {
        TRAIN: entries.Names(*export.declared_names(whole, given, same["dims"])),
        EVAL: entries.Names(*export.declared_names(module, example, same["dims"])),
    }
    sizes, fixed = entries.dims(same["dims"], known), entries.constants(same["constants"], known)

    def read(model: Any, inputs: Any, entry: str, buffers: Sequence[str]) -> Graph:
        graph: Graph = importer.load(
            model, inputs, dims=sizes[entry], constants=fixed[entry], name=same["name"], states=buffers,
            parameters=shared,
        )  # fmt: skip
        return replace(graph, name=interface.library_name(graph.name))

    with derivative.recorded():
        graph = read(whole, given, TRAIN, ())
    (_, number), *others = graph.outputs
    graph = replace(graph, outputs=((training.LOSS, number), *others))
    buffers = [state.name for state in graph.states if state.name != random.STATE]
    with stepping.evaluating(module):
        evaluated = read(module, example, EVAL, buffers)
    inputs = {node.attr.name: node for node in graph.given}
    parameters = [
        Parameter(inputs[state], constant(stepping.value(named[key])), groups[key])
        for key, state in states.items()
        if state in inputs
    ]
    step = training.step(graph, parameters, plan)
    made = _entries(step, graph, parameters, plan, evaluated, rows, same["cut"])
    keys = {state: key for key, state in states.items() if state in inputs}
    by_group = [
        [state for state, key in keys.items() if groups[key] == number and state in step.kept]
        for number in range(len(plan.groups))
    ]
    places = Places({**keys, **{buffer: buffer for buffer in buffers}}, by_group, step.kept)
    return made, graph.structure, places, plan


def _entries(
    step: training.Step, graph: Graph, parameters: Sequence[Parameter], plan: Plan, evaluated: Graph,
    rows: Collection[str], cut: tuple[int, Mapping[str, int | None]] | None,
) -> dict[str, Graph]:  # fmt: skip
    """The entries of a step; in stages, one that is made of the ``graph`` of the loss of a micro-batch, where ``rows``
    are the inputs that have rows of the batch, and so have outputs with as many."""
    every = {**step.entries, EVAL: training.reading(evaluated, parameters)}
    if cut is None:
        return every
    batch = {node.shape[0]: node.attr.name for node in graph.given if node.attr.name in rows}
    for extent, name in batch.items():
        if cut[0] > 1 and not isinstance(extent, int):
            raise InputError(
                f"micro_batches: expected a fixed number of rows of {name!r}, found {extent}; leave it out of dims"
            )
    named = {*rows, *(name for name, node in graph.returned[1:] if node.shape and node.shape[0] in batch)}
    recipe = pipelined_training.Recipe(graph, parameters, plan, frozenset(named) if cut[0] > 1 else frozenset())
    return pipelined_training.Entries(every, TRAIN, recipe)


def _of_onnx(
    model: Any, loss: Any, optimizer: Any, trainable: Sequence[str] | None, outputs: bool, plan: Plan,
    same: Mapping[str, Any],
) -> tuple[dict[str, Graph], Mapping[str, Any], Plan]:  # fmt: skip
    """The entries for an ONNX model of which the initialisers ``trainable`` are trained."""
    suite, importer, source = api.front_end(model)
    if suite != "onnx":
        raise InputError("training: expected a PyTorch module or an ONNX model, found an exported program")
    from luminal.frontends.onnx import stepping

    if not trainable or not isinstance(loss, str):
        raise InputError(
            "training: of an ONNX model, trainable has to name the initialisers to train, and loss an output or one of "
            f"{', '.join(losses.LOSSES)}"
        )
    proto, values = stepping.with_inputs(source, trainable)
    plan, groups = _grouped(plan, optimizer, list(values), list(values))
    name = same["name"] or (Path(model).stem if isinstance(model, str | Path) else None)

    def read(dims: api.Dims | None) -> Graph:
        graph: Graph = importer.load(proto, dims=dims, constants=same["constants"], name=name)
        return replace(graph, name=interface.library_name(graph.name))

    dims, rows = same["dims"], list[str]()
    if same["cut"] is not None and same["cut"][0] > 1:
        dims, rows = stepping.micro_batch(proto, values, dims, *same["cut"])
    with derivative.recorded():
        whole = read(dims)
        number = dict(whole.returned).get(loss)
        targets: list[Node] = []
        if number is None:
            taken = {node.attr.name for node in whole.inputs} | {name for name, _ in whole.outputs}
            number, target = losses.loss(loss, whole.returned[0][1], _free(losses.TARGET, taken))
            targets = [target]
            extents = [node.shape[0] for node in whole.given if node.attr.name in rows]
            rows += [target.attr.name] if target.shape and target.shape[0] in extents else []
    shown = [(name, node) for name, node in whole.returned if outputs and name != loss]
    kept = tuple((state.output, node) for state, node in whole.left)
    inputs = (*whole.given, *targets, *(state.input for state in whole.states))
    told = _free(training.LOSS, {name for name, _ in shown})
    graph = replace(whole, inputs=inputs, outputs=((told, number), *shown, *kept), structure={})
    by_name = {node.attr.name: node for node in whole.given}
    parameters = [Parameter(by_name[key], values[key], groups[key]) for key in groups]
    step = training.step(graph, parameters, plan)
    evaluated = read(same["dims"]) if rows else whole
    return _entries(step, graph, parameters, plan, evaluated, rows, same["cut"]), {}, plan


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _grouped(plan: Plan, optimizer: Any, trainable: Sequence[str], known: Sequence[str]) -> tuple[Plan, dict[str, int]]:
    """``plan`` with the optimiser's groups, and the number of the group of each parameter that is trained."""
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer: expected one of torch.optim or luminal.optim, found {type(optimizer).__name__}")
    groups = [(optimizer.name, group.options) for group in optimizer.groups]
    return replace(plan, groups=groups), optim.grouped(optimizer, trainable, known)


def _shared(target: str | Target) -> DType:
    """The type of learning rates and of what follows from them: float64, where the target has it."""
    return f32 if "float64" in dialects.ALL[parse(target).dialect].lacks else f64


def _plan(clip_norm: float | None, clip_value: float | None, accumulate: int) -> Plan:
    for what, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if limit is not None and not limit > 0:
            raise InputError(f"{what}: expected a limit above 0, found {limit!r}")
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise InputError(f"accumulate: expected a number of calls of at least 1, found {accumulate!r}")
    return Plan((), clip_norm, clip_value, accumulate, told=clip_norm is not None)
