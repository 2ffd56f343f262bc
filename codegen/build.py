"""Sources become a shared library: translation units compiled in parallel, objects kept by content, then linked.

The key of an object is a hash of everything that decides its bytes: source, flags, runtime headers, the compiler with
its arguments. Files enter the cache by renaming, so any number of processes may share it, and are verified when they
are taken from there (``cache``). What is the same for every model, the headers of kernels and the functions behind a
library's interface, is compiled once.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from luminal.codegen import cache, cuda, emulation, headers, opencl, toolchain
from luminal.codegen import platform as platforms
from luminal.codegen.built import Product, Unit
from luminal.codegen.host import IMAGES, INCLUDE, LIBRARY, image_path, namespace
from luminal.codegen.render import COMMON_FLAGS, LIBRARY_FLAGS, SourceBundle, compiled
from luminal.core import config, device
from luminal.core.errors import BuildError
from luminal.core.schedule.program.ir import Kernel
from luminal.core.target import Target

# So many units with common headers make it worth precompiling these, where the cache lacks them: that takes as long as
# two units, and the units wait for it.
_SHARING = 3

Progress: TypeAlias = Callable[[str, int, int], None]  # the file just made, the number of files made, of how many
Resources: TypeAlias = Mapping[str, Mapping[str, Mapping[str, int]]]


@dataclass(frozen=True)
class ImageCompiler:
    """Compiles kernels to images for GPUs: ``make(source, image, folder)`` compiles a file of ``folder``. ``version``
    holds everything that decides an image besides its source and the runtime headers."""

    make: Callable[[str, Path, Path], subprocess.CompletedProcess[str]]
    version: str
    name: str


@dataclass(frozen=True)
class Built:
    """A built library. ``resources`` are the GPU resources of each kernel by architecture (see ``cuda.resources``), as
    far as the compiler reports them; ``warnings`` are its other messages."""

    library: Path
    resources: Resources = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def nvcc(bundle: SourceBundle) -> ImageCompiler:
    """NVIDIA's compiler. Raises BuildError where there is none."""
    compiler = toolchain.find_nvcc()
    flags = [*cuda.image_flags(bundle.target), "-Xptxas", "-v", f"-DLM_NAMESPACE={bundle.namespace}"]

    def make(source: str, image: Path, folder: Path) -> subprocess.CompletedProcess[str]:
        return compiler.run([*flags, f"-I{INCLUDE}", source, "-o", str(image)], folder)

    return ImageCompiler(make, "\0".join([*flags, *compiler.identity]), compiler.command[0])


def clang(bundle: SourceBundle) -> ImageCompiler:
    """Clang, and what makes SPIR-V of its output, where that is there. Raises BuildError where there is no clang."""
    compiler, translator = toolchain.find_clang(), toolchain.find_translator()
    flags = (f"-DLM_NAMESPACE={bundle.namespace}", headers.namespace(*opencl.FLAGS))

    def make(source: str, image: Path, folder: Path) -> subprocess.CompletedProcess[str]:
        return opencl.make_image(compiler, translator, (*flags, f"-I{INCLUDE}"), source, image, folder)

    tools = [*compiler.identity, *(translator.identity if translator is not None else ())]
    return ImageCompiler(make, "\0".join([*opencl.FLAGS, *flags, *tools]), compiler.command[0])


# By the dialect of a target.
_COMPILERS = {"cuda": nvcc, "opencl": clang}


def named_images() -> ImageCompiler:
    """Makes the placeholders that take the place of images where a GPU is emulated."""

    def make(source: str, image: Path, folder: Path) -> subprocess.CompletedProcess[str]:
        image.write_text(emulation.NAMED_IMAGE)
        return subprocess.CompletedProcess([], 0, "", "")

    return ImageCompiler(make, emulation.NAMED_IMAGE, "the emulator")


def build(
    bundle: SourceBundle,
    out_dir: Path | None = None,
    progress: Progress | None = None,
    images: ImageCompiler | None = None,
) -> Built:
    """Compiles and links ``bundle``; the library is put into ``out_dir``, or left in the cache where that is None.

    ``progress`` is called after every translation unit and after linking. ``images`` compiles the bundle's kernels for
    GPUs, if any; None means NVIDIA's compiler, or clang for OpenCL. The emulator of an emulated bundle is put beside
    the library.

    Raises BuildError where there is no compiler, or where it rejects a source: the message names the kernel and its
    source operators.
    """
    if images is None and bundle.image_sources:
        compiler = _COMPILERS[bundle.target.dialect]
        images = named_images() if bundle.emulated else compiler(bundle)
    beside = emulation.products(bundle) if bundle.emulated else ()
    products = [*beside, library(bundle, emulation.DEFINES if bundle.emulated else ())]
    meter = _Meter(progress or (lambda what, done, total: None), sum(product.parts for product in products))
    with cache.root() as folder:
        jobs = [_Job(product, images, folder, meter) for product in products]
        made = [job.run() for job in jobs]
        said = {Path(path).stem: text for path, text in jobs[-1].said().items()}
        resources = {kernel: cuda.resources(text) for kernel, text in said.items()}
        if out_dir is None and not config.NO_CACHE.value:
            out_dir = made[-1].parent
        out_dir = out_dir or Path(tempfile.mkdtemp(prefix="luminal-"))
        out_dir.mkdir(parents=True, exist_ok=True)
        paths = [cache.copied(path, out_dir / path.name) for path in made]
        warnings = tuple(line for text in said.values() for line in text.splitlines() if "warning" in line)
        return Built(paths[-1], {kernel: uses for kernel, uses in resources.items() if uses}, warnings)


def make(product: Product, progress: Progress | None = None) -> Path:
    """Builds ``product``; returns its file in the cache or, with the cache off, in a temporary folder for the caller to
    remove.

    Raises BuildError where the compiler rejects a source.
    """
    with cache.root() as folder:
        made = _Job(product, None, folder, _Meter(progress or (lambda what, done, total: None), product.parts)).run()
        if not config.NO_CACHE.value:
            return made
        return cache.copied(made, Path(tempfile.mkdtemp(prefix="luminal-")) / made.name)


def library(bundle: SourceBundle, flags: Sequence[str] = ()) -> Product:
    """The library of ``bundle``; ``flags`` are extra flags for its host code."""
    exports = bundle.platform.exports
    kernels = {path: text.kernel for path, text in bundle.kernels.items() if path in bundle.units}
    files = {path: bundle.files[path] for path in bundle.units}
    return Product(
        bundle.library,
        toolchain.find(bundle.target.architecture, bundle.platform),
        _units(bundle.name, bundle.target, files, kernels, flags),
        bundle.platform.links(bundle.name),
        {path: Unit(bundle.files[path], (), bundle.kernels[path].kernel) for path in bundle.image_sources},
        {exports: bundle.files[exports]} if exports else {},
    )


def archive(name: str, target: Target, files: Mapping[str, str]) -> Product:
    """The static library of the exported model ``name`` for ``target``, with the features that its code uses: what its
    shared library was linked from, of the text of its ``files``."""
    platform = platforms.ALL[target.system]
    kernels: dict[str, Kernel | None] = {path: None for path in files if path != LIBRARY}
    compiler = toolchain.find(target.architecture, platform)
    units = _units(name, target, files, kernels)
    return Product(platform.archive.format(name=name), compiler, units, (), archive=True)


def _units(
    name: str,
    target: Target,
    files: Mapping[str, str],
    kernels: Mapping[str, Kernel | None],
    flags: Sequence[str] = (),
) -> dict[str, Unit]:
    """What is compiled of the library ``name``: ``kernels`` among its ``files``, once for each level of the target, the
    other files, with the extra ``flags``, and what all libraries have in common."""
    shared = (headers.namespace(*target.flags, *COMMON_FLAGS, *LIBRARY_FLAGS, *flags), f"-I{INCLUDE}")
    own = (*LIBRARY_FLAGS, *flags)
    found: dict[str, Unit] = {}
    for path, text in files.items():
        if path not in kernels:
            common = (f"-DLM_NAMESPACE={namespace(name)}", *shared)
            found[path] = Unit(text, (*own, "-DLM_RUNTIME_ELSEWHERE", *common))
            continue
        for unit, level in compiled(path, target, name):
            # Functions of the headers that were compiled for other instructions have names of their own.
            inner = headers.namespace(*level) if target.levels else shared[0]
            found[unit] = Unit(text, (*level, inner, *shared[1:]), kernels[path], headers.VECTORS)
    runtime = "".join(line + "\n" for line in files[LIBRARY].splitlines() if "exports.hpp" in line)
    return found | {"runtime.cpp": Unit(runtime, (*own, "-DLM_RUNTIME_HERE", *shared))}


@dataclass
class _Meter:
    """Counts the files that are made, and reports them to ``progress``."""

    progress: Progress
    total: int
    done: int = 0

    def step(self, what: str, count: int = 1) -> None:
        self.done += count
        self.progress(what, self.done, self.total)


class _Job:
    """Builds one product in the cache."""

    def __init__(self, product: Product, images: ImageCompiler | None, folder: Path, meter: _Meter) -> None:
        self.product = product
        self.compiler = product.compiler
        self.images = images
        self.cache = folder
        self.meter = meter
        self.runtime = headers.digest()
        self.image_keys = {path: self._image_key(unit) for path, unit in product.images.items()}
        self.keys = {path: self._key(path, unit) for path, unit in product.units.items()}

    def run(self) -> Path:
        """Builds the product where the cache lacks it; returns its file there."""
        library = self.cache / "libraries" / self._link_key() / self.product.file
        left = self.product.parts
        if not cache.whole(library):
            with tempfile.TemporaryDirectory(prefix="luminal-") as name:
                folder = Path(name)
                self._write(folder)
                left -= self._compile({path: self._image(key) for path, key in self.image_keys.items()}, folder)
                for path, key in self.image_keys.items():
                    (folder / image_path(path)).symlink_to(self._image(key).absolute())
                left -= self._compile({path: self._object(key) for path, key in self.keys.items()}, folder)
                self._link(library, folder)
        self.meter.step(library.name, left)
        return library

    def said(self) -> dict[str, str]:
        """The messages of the image compiler, by source."""
        notes = {path: _note(self._image(key)) for path, key in self.image_keys.items()}
        return {path: note.read_text() for path, note in notes.items() if cache.whole(note)}

    # ---- keys -------------------------------------------------------------------------------------------------------

    def _key(self, path: str, unit: Unit) -> str:
        held = self.image_keys.values() if path == IMAGES else ()
        return headers.hashed([unit.text, *_portable(unit.flags), self.runtime, *self.compiler.identity, *held])

    def _image_key(self, unit: Unit) -> str:
        assert self.images is not None
        return headers.hashed([unit.text, self.runtime, self.images.version])

    def _link_key(self) -> str:
        files = self.product.files.values()
        return headers.hashed([*self.keys.values(), *self.product.links, *files, *self.compiler.identity])

    def _object(self, key: str) -> Path:
        return self.cache / "objects" / key[:2] / f"{key}.o"

    def _image(self, key: str) -> Path:
        return self.cache / "objects" / key[:2] / f"{key}.fatbin"

    # ---- compiling --------------------------------------------------------------------------------------------------

    def _write(self, folder: Path) -> None:
        units = {path: unit.text for path, unit in {**self.product.units, **self.product.images}.items()}
        for path, text in {**units, **self.product.files}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)

    def _compile(self, outputs: Mapping[str, Path], folder: Path) -> int:
        """Makes those of ``outputs``, which are keyed by source, that the cache lacks; returns ``len(outputs)``."""
        units = {**self.product.units, **self.product.images}
        missing = [path for path in outputs if not self._has(path, outputs[path])]
        sources = [path for path in missing if path in self.product.units]
        self.meter.done += len(outputs) - len(missing)
        pool = ThreadPoolExecutor(max_workers=config.JOBS.value or device.cpus())
        try:
            shared: dict[str, Future[tuple[str, ...]]] = {}
            for header, paths in self._shared(sources).items():
                if header.exists() or len(paths) >= _SHARING:
                    shared |= dict.fromkeys(paths, pool.submit(self._precompiled, header, units[paths[0]]))
            # Units that wait for no header first, then the longest first, so that all workers finish together.
            missing.sort(key=lambda path: (path in shared, -len(units[path].text), path))
            futures = {
                pool.submit(self._compile_one, path, units[path], outputs[path], folder, shared.get(path)): path
                for path in missing
            }
            for future in as_completed(futures):
                future.result()
                self.meter.step(futures[future])
        finally:
            pool.shutdown(cancel_futures=True)
        return len(outputs)

    def _has(self, path: str, output: Path) -> bool:
        """Whether the cache has ``output``, with what the compiler said of an image."""
        return cache.whole(output) and (path not in self.product.images or cache.whole(_note(output)))

    def _shared(self, paths: Sequence[str]) -> dict[Path, list[str]]:
        """The headers that units have in common, as a file in the cache that includes them, with these units."""
        found: dict[Path, list[str]] = {}
        # A compiler tells headers that it has seen by their place and time.
        seen = [f"{path} {path.stat().st_mtime_ns}" for path in headers.files()]
        for path in paths:
            unit = self.product.units[path]
            if unit.headers and self.compiler.precompiles:
                key = headers.hashed([*unit.headers, *unit.shared_flags, *self.compiler.identity, *seen])
                found.setdefault(self.cache / "headers" / key / "shared.hpp", []).append(path)
        return found

    def _precompiled(self, header: Path, unit: Unit) -> tuple[str, ...]:
        """The flags with which units like ``unit`` include the precompiled ``header``, which is made where the cache
        lacks it; none where it does not compile by itself. Parsing headers takes most of the time of compiling a
        kernel. The objects do not depend on it."""
        text = "".join(f'#include "{name}"\n' for name in unit.headers)
        if not _has_header(header, text):
            cache.made(header.parent.parent)
            folder = Path(tempfile.mkdtemp(prefix=".", dir=header.parent.parent))
            try:
                (folder / header.name).write_text(text)
                if not self.compiler.precompile(header.name, unit.shared_flags, folder):
                    return ()
                with cache.appearing(_precompiled(folder / header.name)) as temporary:
                    _precompiled(folder / header.name).replace(temporary)
                if not _has_header(header, text):  # else another process was first, and may be reading its own
                    if header.parent.exists():  # damaged
                        cache.discard(header.parent)
                    folder.rename(header.parent)
            except OSError:
                if not _has_header(header, text):
                    raise
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        return ("-include", str(header.absolute()))

    def _compile_one(
        self, path: str, unit: Unit, output: Path, folder: Path, header: Future[tuple[str, ...]] | None = None
    ) -> None:
        with cache.appearing(output) as temporary:
            if self.images is not None and path in self.product.images:
                name = self.images.name
                result = self.images.make(path, temporary, folder)
            else:
                name = self.compiler.command[0]
                shared = () if header is None else header.result()
                result = self.compiler.run([*unit.flags, *shared, "-c", path, "-o", str(temporary)], folder)
            if result.returncode != 0:
                raise BuildError(self._failure(name, path, unit, result.stderr))
            if path in self.product.images:
                with cache.appearing(_note(output)) as note:
                    note.write_text(result.stdout + result.stderr)

    def _failure(self, compiler: str, path: str, unit: Unit, messages: str) -> str:
        lines = [line for line in messages.splitlines() if line.strip()]
        text = "\n  ".join(lines[:20]) or "no message (was it killed for want of memory?)"
        kernel = unit.kernel
        what = f"kernel {kernel.name}, made for {'; '.join(kernel.origins) or 'no operator'}," if kernel else path
        return f"{compiler} rejected {what} of {self.product.file}:\n  {text}"

    # ---- linking ----------------------------------------------------------------------------------------------------

    def _link(self, library: Path, folder: Path) -> None:
        with cache.appearing(library) as temporary:
            objects = [str(self._object(key)) for key in self.keys.values()]
            link = self.compiler.run if self.product.standard else self.compiler.link
            if self.product.archive:
                temporary.unlink()  # an empty file is no archive to add to
                result = self.compiler.archive(temporary, objects, folder)
            else:
                made = folder / self.product.file  # a DLL keeps the name that it is linked under
                result = link(["-o", str(made), *objects, *self.product.links], folder)
                if result.returncode == 0:
                    shutil.move(made, temporary)
            if result.returncode != 0:
                raise BuildError(f"cannot link {library.name}:\n  {result.stderr.strip()}")


def _precompiled(header: Path) -> Path:
    return header.with_name(f"{header.name}.gch")


def _has_header(header: Path, text: str) -> bool:
    """Whether the cache has ``header``, which holds ``text``, and what it was precompiled to."""
    try:
        return header.read_text() == text and cache.whole(_precompiled(header))
    except (OSError, UnicodeDecodeError):
        return False


def _note(image: Path) -> Path:
    """The file with the compiler's messages about ``image``."""
    return image.with_suffix(".txt")


def _portable(flags: Sequence[str]) -> list[str]:
    """Flags without include folders, which depend on the machine: the headers there are hashed by content."""
    return [flag for flag in flags if not flag.startswith("-I")]
