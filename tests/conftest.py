"""Options and fixtures of the test suite."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# As many workers run as there are CPUs: a second thread of a library that tests compare with would only spin while it
# waits for one. Before anything imports such a library.
os.environ["OMP_NUM_THREADS"] = "1"
# The first program that tests start keeps the compiler's modules as bytecode for the others, whatever is set outside.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

import pytest

from luminal.core import config
from luminal.core.algebra import stage as algebra

# What this machine's user has tuned must not change what the tests compile.
os.environ["LUMINAL_NO_RECORDS"] = "1"
os.environ["LUMINAL_CHECK"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what is found now")


class Golden:
    """Expected texts in ``tests/golden``; ``--update-golden`` replaces them."""

    FOLDER = Path(__file__).parent / "golden"

    def __init__(self, update: bool) -> None:
        self.update = update

    def check(self, name: str, text: str) -> None:
        """Fails where ``text`` is not the content of the golden file ``name``."""
        path = self.FOLDER / name
        if self.update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} does not exist: run pytest with --update-golden and look at what it writes"
        assert text == path.read_text(), f"{path} differs: look at the change, then run pytest with --update-golden"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.config.getoption("--update-golden"))


@pytest.fixture(scope="module")
def sums_as_spelled() -> Iterator[None]:
    """For tests of what comes after the algebra, with layers that it would make one of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algebra, "improved", lambda graph, target, known=None: graph)
        yield


@pytest.fixture(scope="module")
def passing_cache() -> Iterator[Path]:
    """A cache for models that are too large to be kept: their kernels stay, the models go."""
    kept = config.CACHE.value
    with tempfile.TemporaryDirectory(prefix="luminal-models-") as name, pytest.MonkeyPatch.context() as patch:
        for part in ("objects", "libraries"):
            (kept / part).mkdir(parents=True, exist_ok=True)
            (Path(name) / part).symlink_to(kept / part)
        patch.setenv(config.CACHE.variable, name)
        yield Path(name)
