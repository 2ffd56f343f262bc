"""What a rank does in the tests of training on a mesh: takes steps, saves, goes on, and begins again from what it has
saved, and from what one process has; evaluates; and takes gradients of a function. Arguments: the folder with the
libraries, where it writes what it finds, and among how many ranks beside each other rows are divided; then the kinds of
models."""

import pickle
import sys
from pathlib import Path

import numpy as np

import luminal
from luminal import launch
from luminal.training import Training
from tests.mesh_batches import SAVED, STEPS, batch

folder, ways, *kinds = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
rank = launch.rank()
found = {}


def mine(part: np.ndarray) -> np.ndarray:
    return np.split(part, ways)[rank % ways]


def steps(training: Training, kind: str, first: int) -> list[float]:
    losses = []
    for number in range(first, STEPS):
        if first == 0 and number == SAVED:
            training.save(folder / f"{kind}.saved")
        losses.append(float(training(*map(mine, batch(kind, number)))))
    return losses


for kind in kinds:
    described, rates, plan = pickle.loads((folder / f"{kind}.described").read_bytes())
    training = Training(luminal.load(folder / kind, threads=1), described, None, rates, plan, None, None)
    found[f"{kind}.losses"] = steps(training, kind, 0)
    training.reset()
    training.load(folder / f"{kind}.saved")
    found[f"{kind}.eval"] = training.eval(mine(batch(kind, 0)[0]))
    found[f"{kind}.again"] = steps(training, kind, SAVED)
    if (folder / f"{kind}.of_one").exists():
        training.load(folder / f"{kind}.of_one")
        found[f"{kind}.from_one"] = steps(training, kind, SAVED)
if (folder / "slopes").exists():
    given = np.load(folder / "given.npz")
    slopes = luminal.load(folder / "slopes", threads=1)
    (found["slope"],) = slopes.run({"w": given["w"], "x": mine(given["x"])}).values()
np.savez(folder / f"found.{rank}.npz", **found)
