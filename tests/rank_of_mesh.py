"""What a rank does in the tests of meshes: opens the library in a folder, runs it, writes what it gets. Arguments: the
folder, the file of inputs, the file to write, how many runs, and what happens to rank 1 before the last run, or, where
it is absent, before it opens the library."""

import ctypes
import os
import signal
import sys
from pathlib import Path

import numpy as np

from luminal.runtime import loader

folder, inputs, output, runs, fate = sys.argv[1:]
rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
Path(f"{output}.{rank}.pid").write_text(str(os.getpid()))
try:
    if rank == 1 and fate == "absent":
        ctypes.CDLL(os.environ["LUMINAL_MPI"], ctypes.RTLD_GLOBAL).MPI_Init(None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
    library = loader.load(folder, threads=1)
    given = dict(np.load(inputs))
    for number in range(int(runs)):
        if rank == 1 and fate in ("killed", "stopped") and number == int(runs) - 1:
            os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[fate])
        np.save(f"{output}.{rank}.{number}.npy", library.run(given)[0])
    for name in ("cpus", "cpus.after"):
        Path(f"{output}.{rank}.{name}").write_text(" ".join(map(str, sorted(os.sched_getaffinity(0)))))
        library = None  # which closes it
except (loader.LibraryError, OSError, ValueError) as error:
    Path(f"{output}.{rank}.error").write_text(str(error))  # where mpirun has ended, nobody reads what is printed
    raise
print(f"rank {rank} is done")
