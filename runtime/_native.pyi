from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

class Library:
    def __init__(
        self, path: str, name: str, weights: str | None = None, threads: int = 0, profile: bool = False
    ) -> None: ...
    def metadata_json(self) -> str: ...
    def run(self, entry: int, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]: ...
    def profile(
        self, entry: int, inputs: Sequence[NDArray[Any]]
    ) -> tuple[list[NDArray[Any]], list[tuple[int, int]]]: ...
