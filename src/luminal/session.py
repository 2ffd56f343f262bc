"""Sessions with onnxruntime's interface, for scripts that were written for it: ``from luminal import session as ort``.

The interface is that of https://onnxruntime.ai/docs/api/python; what luminal has no use for is accepted, and said to
the log (``LUMINAL_LOG=info``). What would change results or is not there raises InputError.
"""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from luminal import api, log
from luminal.core.errors import InputError, LuminalError, nearest
from luminal.frontends.onnx import importer, reader
from luminal.tensors import to_numpy

if TYPE_CHECKING:
    import onnx

CPU = "CPUExecutionProvider"
_LOG = logging.getLogger("luminal.session")


class GraphOptimizationLevel(enum.IntEnum):
    """How far onnxruntime rewrites a graph. luminal always does what its own options say."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Whether operators may run beside each other. luminal decides that when it compiles."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


# The options that change nothing, their defaults, and why. Those that are set to something else are logged.
_IGNORED: dict[str, tuple[Any, str]] = {
    "graph_optimization_level": (GraphOptimizationLevel.ORT_ENABLE_ALL, "the compiler has one level, and options"),
    "execution_mode": (ExecutionMode.ORT_SEQUENTIAL, "what runs at once is decided when the model is compiled"),
    "execution_order": (0, "the order of steps is decided when the model is compiled"),
    "inter_op_num_threads": (0, "one pool of intra_op_num_threads serves all steps"),
    "enable_cpu_mem_arena": (True, "memory is planned when the model is compiled"),
    "enable_mem_pattern": (True, "memory is planned when the model is compiled"),
    "enable_mem_reuse": (True, "memory is planned when the model is compiled"),
    "use_per_session_threads": (True, "each session has threads of its own"),
    "use_deterministic_compute": (False, "results never depend on threads or on what ran before"),
    "logid": ("", "there is one log, LUMINAL_LOG"),
    "log_verbosity_level": (0, "there is one log, LUMINAL_LOG"),
}
# Options that a script would miss, by what to do instead.
_REFUSED: dict[str, tuple[Any, str]] = {
    "enable_profiling": (False, "luminal profile MODEL --trace FILE.json writes a trace, Module.profile as well"),
    "profile_file_prefix": ("onnxruntime_profile_", "luminal profile MODEL --trace FILE.json names the file"),
    "optimized_model_filepath": ("", "luminal compile MODEL -o FOLDER writes the compiled model"),
}
# Arguments of onnxruntime's session that steer what luminal has not.
_IGNORED_ARGUMENTS = ("disabled_optimizers", "enable_fallback", "read_config_from_model")
_SEVERITIES = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


class SessionOptions:
    """The options of a session. ``intra_op_num_threads`` (0: one for each CPU), ``log_severity_level`` (0 all to 4
    fatal errors alone; -1: as ``LUMINAL_LOG`` says) and sizes that are fixed by name have their meaning; others are
    accepted, as in the table of docs/guide/sessions.md."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.log_severity_level = -1
        for name, (default, _) in (_IGNORED | _REFUSED).items():
            object.__setattr__(self, name, default)
        self._config: dict[str, str] = {}
        self._sizes: dict[str, int] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        known = {*_IGNORED, *_REFUSED, "intra_op_num_threads", "log_severity_level"}
        if name not in known and not name.startswith("_"):
            raise InputError(f"SessionOptions has no option {name!r}{nearest(name, known)}")
        if name in _REFUSED and value != _REFUSED[name][0]:
            raise InputError(f"SessionOptions.{name}: luminal has none; {_REFUSED[name][1]}")
        object.__setattr__(self, name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry, which changes nothing."""
        self._config[key] = value
        _LOG.info("the entry %r of the configuration changes nothing", key)

    def get_session_config_entry(self, key: str) -> str:
        """The entry that was kept. Raises InputError where there is none."""
        if key not in self._config:
            raise InputError(f"the configuration has no entry {key!r}")
        return self._config[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fixes the symbolic size of that name, which makes a faster library."""
        self._sizes[name] = int(size)

    def add_free_dimension_override_by_denotation(self, name: str, size: int) -> NoReturn:
        raise InputError("sizes are fixed by their names: add_free_dimension_override_by_name")

    def register_custom_ops_library(self, path: str) -> NoReturn:
        raise InputError(
            f"{path!r} holds operators that are compiled for onnxruntime; luminal compiles those that it knows, or "
            "functions of the model itself"
        )

    def add_initializer(self, name: str, value: Any) -> NoReturn:
        raise InputError(f"the initializer {name!r} belongs into the model: its weights are packed when it is compiled")


class RunOptions:
    """The options of a run: kept, without meaning. A run ends by itself."""

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.terminate = False
        self.training_mode = False
        self.only_execute_path_to_fetches = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        _LOG.info("the entry %r of a run's configuration changes nothing", key)


class NodeArg:
    """An input or output: ``name``, ``type`` as in ``tensor(float)``, ``shape`` of numbers and of names of sizes (None
    where a size has none)."""

    def __init__(self, name: str, type: str, shape: Sequence[int | str | None]) -> None:
        self.name, self.type, self.shape = name, type, list(shape)

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


class ModelMetadata:
    """What the file says of itself."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.producer_name: str = model.producer_name
        self.domain: str = model.domain
        self.description: str = model.doc_string
        self.version: int = model.model_version
        self.graph_name: str = model.graph.name
        self.graph_description: str = model.graph.doc_string
        self.custom_metadata_map: dict[str, str] = {entry.key: entry.value for entry in model.metadata_props}


class InferenceSession:
    """An ONNX model, compiled, under onnxruntime's interface.

    ``path_or_bytes`` is the file or the bytes of a model. It is compiled here, or taken from the cache: for all sizes
    within the default bounds, and once more at a call that goes beyond them. Where values of inputs decide shapes, or
    the model holds for some sizes alone, it is compiled at the call. ``providers`` other than ``CPUExecutionProvider``
    are not there; as in onnxruntime, that is a warning. ``options`` are those of ``luminal.compile``: ``dims``,
    ``precision``, ``target``, and so on.

    Raises as ``luminal.compile``.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(path_or_bytes, str | os.PathLike | bytes):
            found = type(path_or_bytes).__name__
            raise InputError(f"InferenceSession: expected the path or the bytes of an ONNX model, found {found}")
        self._options = sess_options or SessionOptions()
        if not isinstance(self._options, SessionOptions):
            raise InputError(f"sess_options: expected luminal's SessionOptions, found {type(sess_options).__name__}")
        log.configure()
        _set_level(self._options.log_severity_level)
        for name, (default, why) in _IGNORED.items():
            if getattr(self._options, name) != default:
                _LOG.info("SessionOptions.%s changes nothing: %s", name, why)
        _check_providers(providers)
        model: Any = path_or_bytes if isinstance(path_or_bytes, bytes) else Path(path_or_bytes)
        for name in _IGNORED_ARGUMENTS:
            options.pop(name, None)
        api.front_end(model)  # which says what is wrong with a path
        proto, _ = reader.read(model)
        dims = {**(options.pop("dims", None) or {}), **self._options._sizes}
        same = {"threads": self._options.intra_op_num_threads, **options, "dims": dims or None}
        self._model = api.for_any_sizes(model, **same)
        fixed = options.get("constants") or {}
        declared = importer.declared(proto)
        self._inputs = [_described(value) for value in declared if value.name not in fixed]
        self._dtypes = {value.name: _dtype(value) for value in declared}
        known = {t.name: t.shape for module in self._model.modules[:1] for t in module.entry.outputs}
        self._outputs = [_described(value, known.get(value.name, ())) for value in proto.graph.output]
        self._metadata = ModelMetadata(proto)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """The outputs of these names, or all of them, as arrays (a classifier's probabilities as lists of maps).

        Raises InputError where inputs are missing, unknown, or do not fit, or there is no such output.
        """
        names = [output.name for output in self._outputs]
        for name in output_names or ():
            if name not in names:
                raise InputError(f"the model has no output {name!r}; its outputs are {', '.join(names)}")
        results = self._model(**self._feeds(input_feed))
        found = dict(zip(names, results if isinstance(results, tuple) else [results], strict=True))
        return [found[name] for name in output_names or names]

    def _feeds(self, given: Mapping[str, Any]) -> dict[str, Any]:
        names = [arg.name for arg in self._inputs]
        missing, unknown = [n for n in names if n not in given], [n for n in given if n not in names]
        if missing or unknown:
            raise InputError(
                f"the inputs are {', '.join(names) or 'none'}"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; unknown: {', '.join(unknown)}" if unknown else "")
            )
        return {arg.name: self._array(arg, given[arg.name]) for arg in self._inputs}

    def _array(self, arg: NodeArg, value: Any) -> NDArray[Any]:
        """``value`` as an array for an input: lists get its type, arrays must have it."""
        wanted = self._dtypes[arg.name]
        if wanted is None:
            raise InputError(f"input {arg.name!r}: {arg.type} can be given as a constant alone (constants=)")
        texts = wanted.kind == "O"
        array = np.asarray(value, wanted) if isinstance(value, list) else to_numpy(value, arg.name, texts)
        if not texts and array.dtype != wanted:
            raise InputError(
                f"input {arg.name!r}: expected {arg.type}, found an array of {array.dtype}; give "
                f"array.astype(numpy.{wanted.name})"
            )
        fits = array.ndim == len(arg.shape) and all(
            size == axis for size, axis in zip(array.shape, arg.shape, strict=True) if isinstance(axis, int)
        )
        if not fits:
            raise InputError(f"input {arg.name!r}: expected the shape {arg.shape}, found {list(array.shape)}")
        return array

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: initializers are constants of the library."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        return self._metadata

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {CPU: {}}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        """Warns of providers that are not there."""
        _check_providers(providers)

    def disable_fallback(self) -> None:
        """Nothing: there is one provider."""

    def enable_fallback(self) -> None:
        """Nothing: there is one provider."""

    def io_binding(self) -> NoReturn:
        raise InputError(f"luminal's sessions have no io_binding: {_RUN}")

    def run_with_iobinding(self, io_binding: Any, run_options: RunOptions | None = None) -> NoReturn:
        raise InputError(f"luminal's sessions have no run_with_iobinding: {_RUN}")

    def run_with_ort_values(self, names: Any, values: Any, run_options: RunOptions | None = None) -> NoReturn:
        raise InputError(f"luminal's sessions have no run_with_ort_values: {_RUN}")

    def run_async(self, names: Any, feed: Any, callback: Any, user_data: Any, options: Any = None) -> NoReturn:
        raise InputError("luminal's sessions have no run_async: call run in a thread; it does not hold Python's lock")

    def end_profiling(self) -> NoReturn:
        raise InputError("luminal's sessions write no profile: luminal profile MODEL --trace FILE.json does")


_RUN = "run takes arrays of host memory without copying them, and gives new ones"


def get_available_providers() -> list[str]:
    """The providers that a session may be asked for."""
    return [CPU]


get_all_providers = get_available_providers


def get_device() -> str:
    """Where sessions run."""
    return "CPU"


def set_default_logger_severity(level: int) -> None:
    """What is logged, from 0 (all) to 4 (fatal errors alone)."""
    _set_level(level)


def _set_level(level: int) -> None:
    if level != -1:
        if not 0 <= level < len(_SEVERITIES):
            raise InputError(f"log_severity_level: expected -1 to {len(_SEVERITIES) - 1}, found {level}")
        logging.getLogger("luminal").setLevel(_SEVERITIES[level])


def _check_providers(providers: Sequence[Any] | None) -> None:
    names = [given if isinstance(given, str) else given[0] for given in providers or ()]
    for name in names:
        if name != CPU:
            _LOG.warning("the provider %r is not there: %s is taken (target= chooses the machine)", name, CPU)


def _described(value: onnx.ValueInfoProto, known: Sequence[int | str] = ()) -> NodeArg:
    """An input or output as the file declares it; where it gives no shape, the one that is ``known``."""
    tensor = value.type.tensor_type
    shape: list[int | str | None] = list(known)
    if value.type.HasField("tensor_type") and tensor.HasField("shape"):
        shape = [size.dim_value if size.HasField("dim_value") else size.dim_param or None for size in tensor.shape.dim]
    return NodeArg(value.name, _type(value.type), shape)


def _type(given: onnx.TypeProto) -> str:
    from onnx import TensorProto

    kind = given.WhichOneof("value")
    if kind == "tensor_type":
        return f"tensor({TensorProto.DataType.Name(given.tensor_type.elem_type).lower()})"
    if kind == "map_type":
        key = TensorProto.DataType.Name(given.map_type.key_type).lower()
        return f"map({key},{_type(given.map_type.value_type)})"
    words = {"sequence_type": "seq", "optional_type": "optional"}
    return f"{words[kind]}({_type(getattr(given, kind).elem_type)})" if kind in words else "unknown"


def _dtype(value: onnx.ValueInfoProto) -> np.dtype[Any] | None:
    """The type of an input's elements in numpy; None where it is no tensor."""
    from onnx import helper

    if not value.type.HasField("tensor_type"):
        return None
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    except KeyError as error:
        raise LuminalError(f"input {value.name!r} has a type of elements that onnx does not know") from error
