"""Language models: from a checkpoint to tokens, in one library.

lm = luminal.llm.compile(model, context=4096)
lm.generate("Once upon a time", temperature=0.8)  # with a tokenizer among its files
lm.prefill(0, tokens)
lm.decode({0: int(lm.logits(0).argmax())})
"""

from luminal.llm.compiler import compile, plan
from luminal.llm.encoders import compile_encoder
from luminal.llm.engine import Engine
from luminal.llm.model import LanguageModel, load
from luminal.llm.sampling import Sampling

__all__ = ["Engine", "LanguageModel", "Sampling", "compile", "compile_encoder", "load", "plan"]
