"""Sources become a shared library: translation units compiled in parallel, objects kept by content, then linked.

The key of an object is a hash of everything that decides its bytes: source, flags, runtime headers, compiler. Files
enter the cache by renaming, so any number of processes may share it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from luminal.codegen import toolchain
from luminal.codegen.render import INCLUDE, LIBRARY_FLAGS, SourceBundle
from luminal.codegen.toolchain import Toolchain
from luminal.core import config
from luminal.core.errors import BuildError

Progress: TypeAlias = Callable[[str, int, int], None]  # what has been done, how many are done, of how many


def build(bundle: SourceBundle, out_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Compiles and links ``bundle``; returns the path of the library, in ``out_dir``, or in the cache where None.

    ``progress`` is called after every translation unit and after linking. Raises BuildError where there is no compiler,
    or where it rejects a source: the message names the kernel and the source operators that it was made for.
    """
    compiler = toolchain.find(bundle.target.architecture, bundle.platform)
    with _cache() as cache:
        job = _Job(bundle, compiler, cache, progress or (lambda what, done, total: None))
        library = job.run()
        if out_dir is None and not config.NO_CACHE.value:
            return library
        out_dir = out_dir or Path(tempfile.mkdtemp(prefix="luminal-"))
        out_dir.mkdir(parents=True, exist_ok=True)
        return _copy(library, out_dir / library.name)


@contextmanager
def _cache() -> Iterator[Path]:
    """The folder of cached files; a temporary one where the cache is switched off."""
    if config.NO_CACHE.value:
        with tempfile.TemporaryDirectory(prefix="luminal-") as temporary:
            yield Path(temporary)
        return
    yield cache_folder()


def cache_folder(part: str = "") -> Path:
    """The folder ``part`` of the cache, made where it does not exist. Raises BuildError where it cannot be."""
    folder = config.CACHE.value / part
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(
            f"cannot create the cache {folder} ({error.strerror}): set {config.CACHE.variable} to another folder"
        ) from None
    return folder


class _Job:
    def __init__(self, bundle: SourceBundle, compiler: Toolchain, cache: Path, progress: Progress) -> None:
        self.bundle = bundle
        self.compiler = compiler
        self.cache = cache
        self.progress = progress
        self.runtime = _digest(_headers())

    def run(self) -> Path:
        """The library in the cache."""
        keys = {path: self._key(path) for path in self.bundle.units}
        library = self.cache / "libraries" / self._link_key(keys) / self.bundle.library
        total = len(keys) + 1
        if not library.exists():
            with tempfile.TemporaryDirectory(prefix="luminal-") as folder:
                self._write(Path(folder))
                self._compile(keys, Path(folder), total)
                self._link(list(keys.values()), library, Path(folder))
        self.progress(library.name, total, total)
        return library

    # ---- keys -------------------------------------------------------------------------------------------------------

    def _flags(self, path: str) -> tuple[str, ...]:
        flags = self.bundle.kernel_flags if path in self.bundle.kernels else LIBRARY_FLAGS
        return (*flags, f"-DLM_NAMESPACE={self.bundle.namespace}")

    def _key(self, path: str) -> str:
        return _digest([self.bundle.files[path], *self._flags(path), self.runtime, self.compiler.version])

    def _link_key(self, keys: dict[str, str]) -> str:
        exports = self.bundle.platform.exports
        listed = [self.bundle.files[exports]] if exports else []
        return _digest([*keys.values(), *self._links, *listed, self.compiler.version])

    @property
    def _links(self) -> tuple[str, ...]:
        return self.bundle.platform.links(self.bundle.name)

    def _object(self, key: str) -> Path:
        return self.cache / "objects" / key[:2] / f"{key}.o"

    # ---- compiling --------------------------------------------------------------------------------------------------

    def _write(self, folder: Path) -> None:
        exports = self.bundle.platform.exports
        for path in (*self.bundle.units, *([exports] if exports else [])):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(self.bundle.files[path])

    def _compile(self, keys: dict[str, str], folder: Path, total: int) -> None:
        missing = [path for path, key in keys.items() if not self._object(key).exists()]
        missing.sort(key=lambda path: (-len(self.bundle.files[path]), path))  # the longest first: an even finish
        done = len(keys) - len(missing)
        pool = ThreadPoolExecutor(max_workers=config.JOBS.value or len(os.sched_getaffinity(0)))
        try:
            futures = {pool.submit(self._compile_one, path, keys[path], folder): path for path in missing}
            for future in as_completed(futures):
                future.result()
                done += 1
                self.progress(futures[future], done, total)
        finally:
            pool.shutdown(cancel_futures=True)

    def _compile_one(self, path: str, key: str, folder: Path) -> None:
        output = self._object(key)
        with _appearing(output) as temporary:
            arguments = [*self._flags(path), f"-I{INCLUDE}", "-c", path, "-o", str(temporary)]
            result = self.compiler.run(arguments, folder)
            if result.returncode != 0:
                raise BuildError(self._failure(path, result.stderr))

    def _failure(self, path: str, messages: str) -> str:
        lines = [line for line in messages.splitlines() if line.strip()]
        text = "\n  ".join(lines[:20]) or "no message (was it killed for want of memory?)"
        kernel = self.bundle.kernels.get(path)
        what = f"kernel {kernel.name}, made for {'; '.join(kernel.origins) or 'no operator'}," if kernel else path
        return f"{self.compiler.command[0]} rejected {what} of {self.bundle.name!r}:\n  {text}"

    # ---- linking ----------------------------------------------------------------------------------------------------

    def _link(self, keys: Sequence[str], library: Path, folder: Path) -> None:
        with _appearing(library) as temporary:
            objects = [str(self._object(key)) for key in keys]
            result = self.compiler.link(["-o", str(temporary), *objects, *self._links], folder)
            if result.returncode != 0:
                raise BuildError(f"cannot link {library.name}:\n  {result.stderr.strip()}")


def _headers() -> list[str]:
    parts: list[str] = []
    for path in sorted(INCLUDE.rglob("*")):
        if path.is_file():
            parts += [path.relative_to(INCLUDE).as_posix(), path.read_text()]
    return parts


def _digest(parts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:40]


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that becomes ``path`` at the end of the ``with``, if that succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=path.suffix, dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o755 if path.suffix in (".so", ".dylib") else 0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> Path:
    with _appearing(target) as temporary:
        shutil.copyfile(source, temporary)
    return target
