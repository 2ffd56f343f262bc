"""Language models: from a checkpoint to tokens, in one library.

    lm = luminal.llm.compile(model, context=4096)
    lm.prefill(0, tokens)
    lm.decode({0: int(lm.logits(0).argmax())})
"""

from luminal.llm.compiler import compile
from luminal.llm.engine import Engine
from luminal.llm.model import LanguageModel, load

__all__ = ["Engine", "LanguageModel", "compile", "load"]
