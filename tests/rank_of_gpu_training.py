"""What a rank does in the test of training on GPUs: takes steps with its rows of each batch, and writes the losses and
the parameters. Arguments: the folder with the library and the batches, and among how many ranks beside each other rows
are divided."""

import pickle
import sys
from pathlib import Path

import numpy as np

import luminal
from luminal import launch
from luminal.training import Training

folder, ways = Path(sys.argv[1]), int(sys.argv[2])
rank = launch.rank()
described, rates, plan = pickle.loads((folder / "described").read_bytes())
training = Training(luminal.load(folder / "step"), described, None, rates, plan, None, None)
batches = zip(*np.load(folder / "batches.npz").values(), strict=True)
losses = [float(training(*(np.split(part, ways)[rank % ways] for part in batch))) for batch in batches]
np.savez(folder / f"found.{rank}.npz", losses=losses, **training.state)
