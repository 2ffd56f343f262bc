"""What a rank does in the tests of language models on a mesh: generates in several ways, and writes what it gets.
Arguments: the folder of the library, without the number of the rank at the end; that of results."""

import json
import sys
from pathlib import Path

import numpy as np

import luminal.llm
from luminal import launch
from luminal.llm.sampling import Sampler, Sampling
from tests.language_mesh_support import COUNT, PROMPTS

output = Path(sys.argv[2])
rank = launch.rank()
lm = luminal.llm.load(f"{sys.argv[1]}{rank}", threads=1)
logits, tokens = [], []

# The likeliest token, again and again, of two sequences side by side.
for slot, prompt in enumerate(PROMPTS):
    lm.prefill(slot, prompt)
for _ in range(COUNT):
    rows = [lm.logits(slot) for slot in range(len(PROMPTS))]
    logits.append(rows)
    tokens.append([int(row.argmax()) for row in rows])
    lm.decode(dict(enumerate(tokens[-1])))

# Cached rows are saved, forgotten and restored; and copied to the other slot.
lm.save(output / f"state.{rank}", [0])
lm.decode({0: 7})
after = lm.logits(0)
lm.reset()
lm.restore(output / f"state.{rank}")
lm.fork(0, 1)
lm.decode({0: 7})
np.testing.assert_array_equal(lm.logits(0), after)
lm.decode({1: 7})
np.testing.assert_array_equal(lm.logits(1), after)
lm.rewind(1, lm.length(1) - 1)
lm.decode({1: 7})
np.testing.assert_array_equal(lm.logits(1), after)

# No seed: each rank has draws of its own, and all take what the first has drawn.
drawn = []
sampler = Sampler(Sampling(temperature=3.0), lm.vocabulary)
for _ in range(COUNT):
    (token,) = lm.sample({0: sampler}).values()
    sampler.accept(token)
    drawn.append(token)
    lm.decode({0: token})

np.save(output / f"logits.{rank}.npy", np.array(logits))
said = {"tokens": tokens, "drawn": drawn, "seed": sampler.seed}
(output / f"said.{rank}.json").write_text(json.dumps(said))
