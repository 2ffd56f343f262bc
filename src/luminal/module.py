"""A compiled model as a callable."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luminal import (
    arguments,
    artifact,
    destination,
    emitted,
    inspection,
    notebook,
    profiled,
    recomputed,
    structure,
    tensors,
    updates,
)
from luminal.codegen import platform as platforms
from luminal.core import target as targets
from luminal.core.decompose import random
from luminal.core.errors import ArtifactError, InputError
from luminal.core.ir import Graph
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from luminal.profiled import Profile
from luminal.progress import Progress, Stages
from luminal.runtime import loader
from luminal.runtime.loader import Library
from luminal.structure import Argument

if TYPE_CHECKING:
    from luminal.tuning.outcome import Outcome


class Module:
    """A compiled model: call it as the model was called; numpy in, numpy out; PyTorch in, PyTorch out, on a GPU too.

    ``folder`` holds the artefact; ``graph`` is the primitive graph and ``program`` what it was compiled to, without the
    values of constants (both None for a library loaded from disk). Of a module with several entries, ``module[name]``
    is one of them. ``seconds`` says how long each stage of the compilation took, and ``tuned`` what a search for
    schedules before it found. Where this machine cannot run code for ``target``, the module can be looked at and
    exported, and calls raise TargetError.
    """

    def __init__(
        self,
        folder: Path,
        threads: int = 0,
        graphs: Mapping[str, Graph] | None = None,
        seconds: Mapping[str, float] | None = None,
        target: Target | None = None,
        program: Program | None = None,
        tuned: Outcome | None = None,
        verify: bool = False,
    ) -> None:
        self.folder = folder
        self.tuned = tuned
        self._graphs = dict(graphs or {})
        self.program = None if program is None else replace(program, constants={})
        self.seconds = dict(seconds or {})
        self._target = target
        self.interface: loader.Interface
        with artifact.opening(folder):
            runs = target is None or self.emulated or targets.supported(target)
            if runs:
                artifact.check_library(folder, self.manifest)
            others = program is None  # what was exported may be given weights that were trained further
            self._load = cache(lambda: loader.load(folder, threads=threads, verify=verify, other_weights=others))
            # Ranks of a mesh meet when they open theirs, so that is left to the first call.
            self._waits = runs and "mesh" in self.manifest
            self.interface = self._load() if runs and not self._waits else loader.describe(folder)
        self._selected = None if len(self.interface.entries) > 1 else self.interface.entries[0]
        self._device: str = self.manifest.get("device", "cpu")

    @property
    def entries(self) -> list[str]:
        """The names of the entries."""
        return [entry.name for entry in self.interface.entries]

    def __getitem__(self, entry: str) -> Module:
        """The entry of that name, as a module that shares the library and its weights with this one.

        Raises InputError where there is none.
        """
        found = next((e for e in self.interface.entries if e.name == entry), None)
        if found is None:
            raise InputError(f"expected an entry of {', '.join(self.entries)}, found {entry!r}")
        selected = copy.copy(self)
        selected._selected = found
        return selected

    @property
    def entry(self) -> loader.EntrySpec:
        """The entry that a call runs. Raises InputError where several are to be chosen from."""
        if self._selected is None:
            raise InputError(
                f"{self.interface.name!r} has the entries {', '.join(self.entries)}: take one of them, as in "
                f"module[{self.entries[0]!r}]"
            )
        return self._selected

    @property
    def graph(self) -> Graph | None:
        """The primitive graph of the entry; None for a library that was loaded from disk."""
        return self._graphs.get(self.entry.name)

    @property
    def _structure(self) -> Mapping[str, Any]:
        return self.entry.structure or {}

    def __repr__(self) -> str:
        if self._selected is None:
            return f"<luminal module {self.interface.name!r} with the entries {', '.join(self.entries)}>"
        inputs = ", ".join(f"{t.name}: {t.dtype}{list(t.shape)}" for t in self.entry.inputs)
        outputs = ", ".join(f"{t.name}: {t.dtype}{list(t.shape)}" for t in self.entry.outputs)
        return f"<luminal module {self.interface.name!r} ({inputs}) -> ({outputs})>"

    def _repr_html_(self) -> str:
        """What notebooks show: inputs and outputs of each entry, sizes, target, kernels."""
        found = inspection.inspect(self.folder / self.manifest["library"])
        return notebook.heading(repr(self)) + notebook.html(
            "\n".join(inspection.lines(found)), *inspection.tables(found)
        )

    @property
    def library(self) -> Library:
        """The open library. Raises TargetError where it is for another machine. That of a mesh is opened now, together
        with those of the other ranks."""
        if self._waits:
            with artifact.opening(self.folder):
                self.interface, self._waits = self._load(), False
        if not isinstance(self.interface, Library):
            assert self._target is not None
            targets.check_supported(self._target)
        assert isinstance(self.interface, Library)
        return self.interface

    @property
    def input_names(self) -> list[str]:
        return [t.name for t in self.entry.inputs]

    @property
    def output_names(self) -> list[str]:
        return [t.name for t in self.entry.outputs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; results are nested as the model's own, in memory of their own. Where the library is for
        NVIDIA's GPUs and an argument lies on one, it is used there, and results lie there too, on PyTorch's current
        stream: see ``Library.run``. An argument that a PyTorch model writes into holds the new value afterwards; where
        the run fails, it is as it was.

        Raises InputError or ValueError for arguments that do not fit, or cannot be written into; IndexError where the
        model met an index out of range.
        """
        arguments = structure.bind(self._structure, self.input_names, args, kwargs)
        arrays = self._arrays(arguments)
        updates.check(arguments)
        results = self.library.run(arrays, self.entry.name)
        updates.write(arguments, results)
        if any(tensors.is_torch(argument.value) for argument in arguments):
            results = [tensors.to_torch(r) for r in results]
        return structure.rebuild(self._structure, results)

    def _arrays(self, arguments: Sequence[Argument]) -> list[Any]:
        return [
            tensors.to_array(argument.numbers, spec.name, self._device, spec.dtype == object)
            for argument, spec in zip(arguments, self.entry.inputs, strict=True)
        ]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run on arrays by name; results by name, nothing converted to or from PyTorch: see ``Library.run``. Arrays
        are left as they are: what a PyTorch model leaves in an input ``x`` that it writes into is the result
        ``x.next``.
        """
        return dict(zip(self.output_names, self.library.run(inputs, self.entry.name), strict=True))

    def profile(
        self, *args: Any, runs: int = 21, threads: int = 0, peak: bool = True, trace: str | Path | None = None,
        **kwargs: Any,
    ) -> Profile:  # fmt: skip
        """Where the time of a call with these arguments goes: by kernel and by source operator, with the work that they
        do and, with ``peak``, what part of the machine's best that is. Each time is the median of ``runs``; ``threads``
        0 means one for each CPU. A ``trace`` with every thread is written to that file, for Perfetto or Chrome. States
        of this module stay as they are.

        Raises as a call does, and BuildError where the peak needs a compiler and there is none.
        """
        bound = self._arrays(structure.bind(self._structure, self.input_names, args, kwargs))
        arrays = dict(zip(self.input_names, bound, strict=True))
        threads = arguments.threads(threads)
        self.library  # noqa: B018  (raises where this machine cannot run it)
        if trace is not None:
            profiled.trace(self, arrays, destination.file(Path(trace), "trace"), threads=threads)
        return profiled.measure(self, arrays, max(runs, 1), threads, peak)

    @property
    def state(self) -> dict[str, Any]:
        """What the last call left in the states of the model, by name: copies."""
        return self.library.state()

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Let the next call find ``values`` in the states of those names; the others are left as they are.

        Raises ValueError where there is no such state, or a value has another type or shape than the state.
        """
        for name, value in values.items():
            self.library.set_state(name, tensors.to_numpy(value, name))

    def seed(self, seed: int) -> None:
        """Draw random numbers from ``seed`` from now on, as if no call had drawn any. Raises InputError where the model
        draws none, and for a ``seed`` that is no integer of 64 bits."""
        if random.STATE not in [state.name for state in self.interface.states]:
            raise InputError("seed: the model draws no random numbers")
        self.load_state({random.STATE: random.first(seed).attr.array})

    def reset(self) -> None:
        """Give all states the values that they had before the first call."""
        self.library.reset()

    def accepts(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a call with these arguments fits: types, ranks, sizes and constants."""
        try:
            arrays = self._arrays(structure.bind(self._structure, self.input_names, args, kwargs))
        except InputError:
            return False
        bounds = {d.name: (d.lower, d.upper) for d in self.interface.dims}
        sizes: dict[str, int] = {}
        for array, spec in zip(arrays, self.entry.inputs, strict=True):
            fits = spec.dtype == object or str(array.dtype).rpartition(".")[2] == spec.dtype.name
            if not fits or len(array.shape) != len(spec.shape):
                return False
            for size, wanted in zip(array.shape, spec.shape, strict=True):
                if isinstance(wanted, int):
                    fits = size == wanted
                elif wanted in bounds:
                    low, high = bounds[wanted]
                    fits = low <= size <= high and sizes.setdefault(wanted, size) == size
                else:
                    continue  # an expression of sizes: the library itself checks it
                if not fits:
                    return False
        return True

    def export(
        self, folder: str | Path, *, python_module: bool = True, emit: str = "library", progress: Progress | None = None
    ) -> Path:
        """Write the artefact to ``folder``: library, header, C++ wrapper, weights, manifest, sources with CMake, and an
        importable Python module that needs numpy alone, or ml_dtypes too where inputs or outputs are of a type that
        numpy has not by itself. That module is left out where the library is for another system or architecture than
        this machine's; its source is there. Returns the folder.

        ``emit`` adds a static library (``static``) or a wheel for any Python 3 (``wheel``), or writes sources alone
        (``source``), which a C++17 compiler builds.

        ``progress(stage, fraction)`` is called as work goes on. Raises InputError where ``folder`` cannot be written
        or holds anything but this model, BuildError where the Python module cannot be compiled.
        """
        name = self.interface.name
        emitted.check(emit)
        target = destination.export(folder, "folder", name)
        damaged = artifact.problem(self.folder)
        if damaged:
            raise ArtifactError(f"the compiled model in {str(self.folder)!r} is damaged: {damaged}; compile it again")
        # The manifest first: by it, a folder whose disk was full is known as this model's when it is written again.
        items = sorted(self.folder.iterdir(), key=lambda item: (item.name != loader.MANIFEST, item.name))
        with destination.writing(target, "folder"):
            for item in items:
                if item.name.startswith(artifact.module_file(name)):
                    continue  # left by an earlier export, or being compiled by one in another process
                for path in sorted(item.rglob("*")) if item.is_dir() else [item]:
                    if path.is_file():
                        destination.replaced(path, target / path.relative_to(self.folder))
        here = targets.architecture(), platforms.here().library_file(name)
        about = self.manifest["target"]
        system = targets.ABROAD.get(about["name"], targets.X86_64).system
        native = platforms.ALL[system].python and here == (about["architecture"], self.manifest["library"])
        if python_module and emit != "source" and native:
            with Stages(progress)("python module"):
                built = artifact.python_module(self.folder, name)
            with destination.writing(target, "folder"):
                destination.replaced(built, target / built.name)
        emitted.emit(emit, target, name)
        return target

    def approximated(self, option: str) -> int:
        """How many places the ``option`` has changed, such as ``algebra``, ``weights`` or ``activations``; the manifest
        lists them."""
        return sum(made["option"] == option for made in self.manifest.get("approximations", ()))

    def explain(self) -> str:
        """What options changed of the model, a line each: the option, the source operators, and what was done. Then
        each kernel that computes in one pass what the model spells in several, and how its reductions follow each
        other. Then what is computed again to save memory. Last, of a mesh, how its weights lie, and what a rank sends.
        Empty where there is nothing of these."""
        manifest = self.manifest
        made = [(x["option"], x["origins"], x["what"]) for x in manifest.get("approximations", ())]
        passes = [(k["name"], k["origins"], line) for k in manifest["kernels"] for line in k.get("derivation", ())]
        lines = [f"{name}: {'; '.join(origins)}: {what}" for name, origins, what in (*made, *passes)]
        lines += recomputed.lines(manifest)
        return "\n".join([*lines, *(f"mesh: {line}" for line in manifest.get("plan", ()))])

    @property
    def manifest(self) -> dict[str, Any]:
        """What ``manifest.json`` says."""
        return loader.read_manifest(self.folder / loader.MANIFEST)

    @property
    def emulated(self) -> bool:
        """Whether the library is for a GPU that is emulated."""
        return bool(self.manifest.get("emulated", False))


def load(folder: str | Path, *, threads: int = 0, verify: bool = False) -> Module:
    """Open an exported or compiled model: the folder that ``Module.export`` wrote.

    ``threads`` 0 means one for each CPU that the process may use. All bytes of the weights are verified up to 1 GB, of
    larger ones with ``verify``. Weights of another compilation of the same model, of which only values differ, are
    taken with a warning. Raises ArtifactError, which is an OSError too, where the library, its weights or its
    manifest are missing, cut, damaged or do not belong together, TargetError where this machine lacks the GPU that it
    is for, InputError for ``threads`` that are none of 0 .. 1023.
    """
    threads = arguments.threads(threads)
    location = Path(folder)
    if not (location / loader.MANIFEST).is_file():
        raise ArtifactError(
            f"no exported model at {str(folder)!r}: expected a folder with {loader.MANIFEST}, as Module.export and "
            "luminal compile write it"
        )
    with artifact.opening(location):
        manifest = loader.read_manifest(location / loader.MANIFEST)
        target = targets.GPUS.get(manifest.get("target", {}).get("name", ""))
        if target is not None and not manifest["emulated"]:
            targets.check_supported(target)
        if artifact.has_other_weights(location, manifest):
            warnings.warn(
                f"{str(location / manifest['weights'])!r} holds other weights than the model was compiled with",
                stacklevel=2,
            )
    return Module(location, threads, verify=verify)
