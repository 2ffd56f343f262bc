"""What the tests of language models on a mesh and their ranks share."""

import numpy as np

VOCABULARY, COUNT = 600, 24
PROMPTS = [[int(token) for token in np.random.default_rng(seed).integers(5, VOCABULARY, 20)] for seed in range(2)]
