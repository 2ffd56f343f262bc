"""What a rank does in the test of language models on GPUs: writes the tokens that follow a prompt. Arguments: the
folder of the library; that of results, with the prompt; how many tokens."""

import json
import sys
from pathlib import Path

import luminal.llm
from luminal import launch
from luminal.llm import Sampling
from luminal.llm.sampling import Sampler

output, count = Path(sys.argv[2]), int(sys.argv[3])
model = luminal.llm.load(sys.argv[1])
model.prefill(0, json.loads((output / "prompt.json").read_text()))
sampler = Sampler(Sampling(), model.vocabulary)
found = []
for _ in range(count):
    found.append(model.sample({0: sampler})[0])
    model.decode({0: found[-1]})
(output / f"found.{launch.rank()}.json").write_text(json.dumps(found))
