"""Sources become a shared library: translation units compiled in parallel, objects kept by content, then linked.

The key of an object is a hash of everything that decides its bytes: source, flags, runtime headers, compiler. Files
enter the cache by renaming, so any number of processes may share it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from luminal.codegen import cuda, toolchain
from luminal.codegen.render import IMAGES, INCLUDE, LIBRARY_FLAGS, SourceBundle, image_path
from luminal.codegen.toolchain import Toolchain
from luminal.core import config
from luminal.core.errors import BuildError

Progress: TypeAlias = Callable[[str, int, int], None]  # what has been done, how many are done, of how many


@dataclass(frozen=True)
class ImageCompiler:
    """Makes images of kernels for GPUs: ``make(source, image, folder)`` compiles a file of ``folder``. ``version`` says
    everything that decides an image beside its source and the headers of the runtime."""

    make: Callable[[str, Path, Path], subprocess.CompletedProcess[str]]
    version: str
    name: str


def nvcc(bundle: SourceBundle) -> ImageCompiler:
    """NVIDIA's compiler. Raises BuildError where there is none."""
    compiler = toolchain.find_nvcc()
    flags = [*cuda.image_flags(bundle.target), f"-DLM_NAMESPACE={bundle.namespace}"]

    def make(source: str, image: Path, folder: Path) -> subprocess.CompletedProcess[str]:
        return compiler.run([*flags, f"-I{INCLUDE}", source, "-o", str(image)], folder)

    return ImageCompiler(make, "\0".join([*flags, compiler.version]), compiler.command[0])


def build(
    bundle: SourceBundle,
    out_dir: Path | None = None,
    progress: Progress | None = None,
    images: ImageCompiler | None = None,
) -> Path:
    """Compiles and links ``bundle``; returns the path of the library, in ``out_dir``, or in the cache where None.

    ``progress`` is called after every translation unit and after linking. ``images`` compiles kernels for GPUs, where
    the bundle has any: NVIDIA's compiler, where None. Raises BuildError where there is no compiler,
    or where it rejects a source: the message names the kernel and the source operators that it was made for.
    """
    compiler = toolchain.find(bundle.target.architecture, bundle.platform)
    with _cache() as cache:
        if images is None and bundle.image_sources:
            images = nvcc(bundle)
        job = _Job(bundle, compiler, images, cache, progress or (lambda what, done, total: None))
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
    def __init__(
        self,
        bundle: SourceBundle,
        compiler: Toolchain,
        images: ImageCompiler | None,
        cache: Path,
        progress: Progress,
    ) -> None:
        self.bundle = bundle
        self.compiler = compiler
        self.images = images
        self.cache = cache
        self.progress = progress
        self.runtime = _digest(_headers())

    def run(self) -> Path:
        """The library in the cache."""
        images = {path: self._image_key(path) for path in self.bundle.image_sources}
        keys = {path: self._key(path, images) for path in self.bundle.units}
        library = self.cache / "libraries" / self._link_key(keys) / self.bundle.library
        total = len(images) + len(keys) + 1
        if not library.exists():
            with tempfile.TemporaryDirectory(prefix="luminal-") as name:
                folder = Path(name)
                self._write(folder)
                self._compile({path: self._image(key) for path, key in images.items()}, folder, 0, total)
                for path, key in images.items():
                    (folder / image_path(path)).symlink_to(self._image(key).absolute())
                self._compile({path: self._object(key) for path, key in keys.items()}, folder, len(images), total)
                self._link(list(keys.values()), library, folder)
        self.progress(library.name, total, total)
        return library

    # ---- keys -------------------------------------------------------------------------------------------------------

    def _flags(self, path: str) -> tuple[str, ...]:
        flags = self.bundle.kernel_flags if path in self.bundle.kernels else LIBRARY_FLAGS
        return (*flags, f"-DLM_NAMESPACE={self.bundle.namespace}")

    def _key(self, path: str, images: Mapping[str, str]) -> str:
        held = images.values() if path == IMAGES else ()
        return _digest([self.bundle.files[path], *self._flags(path), self.runtime, self.compiler.version, *held])

    def _image_key(self, path: str) -> str:
        assert self.images is not None
        return _digest([self.bundle.files[path], self.runtime, self.images.version])

    def _link_key(self, keys: dict[str, str]) -> str:
        exports = self.bundle.platform.exports
        listed = [self.bundle.files[exports]] if exports else []
        return _digest([*keys.values(), *self._links, *listed, self.compiler.version])

    @property
    def _links(self) -> tuple[str, ...]:
        return self.bundle.platform.links(self.bundle.name)

    def _object(self, key: str) -> Path:
        return self.cache / "objects" / key[:2] / f"{key}.o"

    def _image(self, key: str) -> Path:
        return self.cache / "objects" / key[:2] / f"{key}.fatbin"

    # ---- compiling --------------------------------------------------------------------------------------------------

    def _write(self, folder: Path) -> None:
        exports = self.bundle.platform.exports
        for path in (*self.bundle.units, *self.bundle.image_sources, *([exports] if exports else [])):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(self.bundle.files[path])

    def _compile(self, outputs: Mapping[str, Path], folder: Path, done: int, total: int) -> None:
        """Makes those of ``outputs``, by source, that the cache lacks; ``done`` of ``total`` files are there before."""
        missing = [path for path, output in outputs.items() if not output.exists()]
        missing.sort(key=lambda path: (-len(self.bundle.files[path]), path))  # the longest first: an even finish
        done += len(outputs) - len(missing)
        pool = ThreadPoolExecutor(max_workers=config.JOBS.value or len(os.sched_getaffinity(0)))
        try:
            futures = {pool.submit(self._compile_one, path, outputs[path], folder): path for path in missing}
            for future in as_completed(futures):
                future.result()
                done += 1
                self.progress(futures[future], done, total)
        finally:
            pool.shutdown(cancel_futures=True)

    def _compile_one(self, path: str, output: Path, folder: Path) -> None:
        with _appearing(output) as temporary:
            if self.images is not None and path in self.bundle.image_sources:
                name = self.images.name
                result = self.images.make(path, temporary, folder)
            else:
                name = self.compiler.command[0]
                arguments = [*self._flags(path), f"-I{INCLUDE}", "-c", path, "-o", str(temporary)]
                result = self.compiler.run(arguments, folder)
            if result.returncode != 0:
                raise BuildError(self._failure(name, path, result.stderr))

    def _failure(self, compiler: str, path: str, messages: str) -> str:
        lines = [line for line in messages.splitlines() if line.strip()]
        text = "\n  ".join(lines[:20]) or "no message (was it killed for want of memory?)"
        kernel = self.bundle.kernels.get(path)
        what = f"kernel {kernel.name}, made for {'; '.join(kernel.origins) or 'no operator'}," if kernel else path
        return f"{compiler} rejected {what} of {self.bundle.name!r}:\n  {text}"

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
