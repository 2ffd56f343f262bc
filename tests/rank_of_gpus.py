"""What a rank does in the tests of meshes of GPUs: opens the library in a folder, runs it, writes what it gets, and
what the emulated driver has seen.

Arguments: the folder, the file of inputs, the file to write, and settings as JSON: ``runs``; what happens to rank 1
(``fate``) before the last run, or, where it is absent or without NCCL, before it opens the library; how ranks find
each other (``way``): by MPI, or by NCCL's ``id`` or a ``communicator`` that this script makes, with the number of the
rank in RANK; settings of the emulated driver (``being``).
"""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from luminal.runtime import loader
from tests import cuda_support
from tests.abi_support import LM_FLOAT32, value_at


class Options(cuda_support.Options):
    """``lm_options``, whole."""

    _fields_ = (
        ("verify", ctypes.c_int32), ("other_weights", ctypes.c_int32), ("trace_path", ctypes.c_char_p),
        ("communicator", ctypes.c_void_p), ("mpi_library", ctypes.c_char_p), ("limit_seconds", ctypes.c_double),
        ("nccl_id", ctypes.c_void_p), ("number", ctypes.c_int32), ("nccl_communicator", ctypes.c_void_p),
        ("nccl_library", ctypes.c_char_p),
    )  # fmt: skip


class Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class Config(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint32), ("version", ctypes.c_uint32), ("blocking", ctypes.c_int),
    )  # fmt: skip


class Opened:
    """The library by its C interface; the first entry, of which all values are float32 of sizes that are known."""

    def __init__(self, folder: Path, **options) -> None:
        about = loader.read_manifest(folder / loader.MANIFEST)
        self.name, self.entry = about["name"], about["entries"][0]
        self.abi = ctypes.CDLL(str(folder / about["library"]))
        self.library, self.context = ctypes.c_void_p(), ctypes.c_void_p()
        given = Options(size=ctypes.sizeof(Options), **options)
        self._check(self._call("open")(ctypes.byref(given), ctypes.byref(self.library)))
        self._check(self._call("context_create")(self.library, ctypes.byref(self.context)))

    def run(self, given):
        arrays = [np.ascontiguousarray(given[tensor["name"]]) for tensor in self.entry["inputs"]]
        outputs = [np.full(tensor["shape"], np.nan, np.float32) for tensor in self.entry["outputs"]]
        values = [[value_at(x.ctypes.data, LM_FLOAT32, x.shape) for x in part] for part in (arrays, outputs)]
        packed = [(type(part[0]) * len(part))(*part) for part in values]
        self._check(self._call("run")(self.context, 0, *packed, None))
        return outputs

    def close(self) -> None:
        self._call("context_destroy")(self.context)
        self._check(self._call("close")(self.library))

    def _call(self, function: str):
        return getattr(self.abi, f"{self.name}_{function}")

    def _check(self, status: int) -> None:
        if status == 0:
            return
        text = ctypes.create_string_buffer(2048)
        self._call("last_error")(self.library, self.context, text, ctypes.c_size_t(2048))
        raise RuntimeError(text.value.decode())


def shared_id(fake: ctypes.CDLL, rank: int, file: Path) -> Id:
    """The id that the first rank makes, handed round by a file."""
    made = Id()
    if rank == 0:
        assert fake.ncclGetUniqueId(ctypes.byref(made)) == 0
        file.with_suffix(".part").write_bytes(bytes(made))
        file.with_suffix(".part").rename(file)
    while not file.exists():
        time.sleep(0.01)
    return Id.from_buffer_copy(file.read_bytes())


def main(folder: Path, inputs: Path, output: str, runs: int, fate: str, way: str, being: dict[str, int]) -> None:
    ranks = loader.read_manifest(folder / loader.MANIFEST)["mesh"].values()
    rank = int(os.environ.get("PMI_RANK", os.environ.get("RANK", "0")))
    Path(f"{output}.{rank}.pid").write_text(str(os.getpid()))
    fake = cuda_support.FakeDriver(folder / "emulated_driver.so")
    for setting, value in being.items():
        assert fake.library.lm_cuda_set(setting.encode(), ctypes.c_int64(value)) == 0, setting
    caller, communicator = None, ctypes.c_void_p()
    try:
        if rank == 1 and fate == "without":
            os.environ["LUMINAL_NCCL"] = "/none/libnccl.so"
        if rank == 1 and fate == "absent":
            ctypes.CDLL(os.environ["LUMINAL_MPI"], ctypes.RTLD_GLOBAL).MPI_Init(None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
        if way == "mpi":
            library = loader.load(folder, threads=1)
        else:
            made = shared_id(fake.library, rank, Path(f"{output}.id"))
            if way == "communicator":
                caller = cuda_support.Caller(fake)
                config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, 1)
                of = ctypes.byref(communicator), int(np.prod(list(ranks))), made, rank, ctypes.byref(config)
                assert fake.library.ncclCommInitRankConfig(*of) == 0
                library = Opened(folder, nccl_communicator=communicator)
            else:
                library = Opened(folder, nccl_id=ctypes.addressof(made), number=rank)
        given = {name: x[rank] if name.endswith(".of") else x for name, x in np.load(inputs).items()}
        given = {name.removesuffix(".of"): x for name, x in given.items()}
        for number in range(runs):
            if rank == 1 and fate in ("killed", "stopped") and number == runs - 1:
                os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[fate])
            np.savez(f"{output}.{rank}.{number}.npz", *library.run(given))
        calls = {name: fake.calls(name) for name in ("cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuLaunchKernel")}
        Path(f"{output}.{rank}.calls").write_text(json.dumps(calls))
        if way == "mpi":
            del library  # which closes it
        else:
            library.close()
    except (loader.LibraryError, OSError, ValueError, RuntimeError) as error:
        Path(f"{output}.{rank}.error").write_text(str(error))
        library = None
        raise
    finally:
        Path(f"{output}.{rank}.faults").write_text("\n".join(fake.faults()))
    if caller is not None:
        assert fake.library.ncclCommDestroy(communicator) == 0
        caller.close()
    assert fake.objects() == 0, fake.objects()
    print(f"rank {rank} is done")


if __name__ == "__main__":
    folder, inputs, output, settings = sys.argv[1:]
    main(
        Path(folder),
        Path(inputs),
        output,
        **{"runs": 1, "fate": "none", "way": "mpi", "being": {}} | json.loads(settings),
    )
