"""Checks of where results are to be written, made before the work begins, as a compilation may take minutes; and files
that are replaced atomically."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from luminal.core.errors import InputError
from luminal.runtime import loader


def folder(path: str | Path, what: str) -> Path:
    """``path`` as a folder, which exists and is writable or can be made; ``what`` is the argument that gave it.

    Makes nothing. Raises InputError where a file is in the way or the permission to write is missing.
    """
    path = Path(path)
    present = next(p for p in (path.absolute(), *path.absolute().parents) if os.path.lexists(p))
    if not os.path.isdir(present):
        way = "a file of that name" if present == path.absolute() else f"that {str(present)!r} is a file"
        raise InputError(f"{what} {str(path)!r}: expected a folder, found {way}; name another folder, or move the file")
    if not _may(present, os.W_OK | os.X_OK):
        raise InputError(
            f"{what} {str(path)!r}: expected a folder that you may write, found that you may not write to "
            f"{str(present)!r}; name another folder, or change its permissions"
        )
    return path


def export(path: str | Path, what: str, name: str) -> Path:
    """``path``, checked as by ``folder``, for an export of the model ``name``. Raises InputError where it holds
    anything but an earlier export of that model."""
    path = folder(path, what)
    present = sorted(item.name for item in path.iterdir()) if path.exists() else []
    if not present:
        return path
    try:
        found = loader.read_manifest(path / loader.MANIFEST)["name"]
    except (OSError, UnicodeDecodeError):
        more = f" and {len(present) - 3} more" if len(present) > 3 else ""
        raise InputError(
            f"{what} {str(path)!r}: expected an empty folder, or one that holds an exported model, found "
            f"{', '.join(present[:3])}{more}, which an export might replace; name another folder, or empty this one"
        ) from None
    if found != name:
        raise InputError(
            f"{what} {str(path)!r}: expected an empty folder, or one that holds the model {name!r}, found the model "
            f"{found!r}; name another folder, or remove what this one holds"
        )
    return path


def file(path: str | Path, what: str) -> Path:
    """``path`` as a file, which is writable or can be made with its folder; arguments and errors as of ``folder``."""
    path = Path(path)
    if os.path.isdir(path):
        raise InputError(f"{what} {str(path)!r}: expected a file, found a folder of that name; name another file")
    if not os.path.lexists(path):
        folder(path.parent, what)
    elif not _may(path, os.W_OK):
        raise InputError(
            f"{what} {str(path)!r}: expected a file that you may write, found that you may not; "
            "name another file, or change its permissions"
        )
    return path


@contextlib.contextmanager
def writing(path: Path, what: str) -> Iterator[None]:
    """Turns the system's errors in writing ``path``, such as a full disk, into InputError; ``what`` is the argument
    that gave the path."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{what} {str(path)!r}: expected a place that can be written, found: {error.strerror or error}; name "
            "another, or make room"
        ) from error


def replaced(source: Path, path: Path) -> None:
    """Put a copy of the file ``source`` at ``path``, and make its folder. A complete new file replaces an old one, so a
    process that has mapped the old file keeps its content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        shutil.copy2(source, work)
        os.replace(work, path)
    finally:
        work.unlink(missing_ok=True)


def written(content: bytes, path: Path) -> None:
    """Put a file of this ``content`` at ``path``, as ``replaced`` does."""
    work = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        work.write_bytes(content)
        os.replace(work, path)
    finally:
        work.unlink(missing_ok=True)


def _may(path: Path, access: int) -> bool:
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)
