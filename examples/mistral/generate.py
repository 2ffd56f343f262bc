"""Mistral: text that follows a text. Its layers look back over a window, which is a ring in the cache.

    python examples/mistral/generate.py "Once upon a time" [--model FOLDER_OR_FILE.gguf] [--weights q8_0]

Without a model, a small one with random weights speaks.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples import language
from examples.common import run


def main(arguments: list[str]) -> None:
    language.main("mistral", __doc__.splitlines()[0], arguments, sliding_window=128)


if __name__ == "__main__":
    run(main)
