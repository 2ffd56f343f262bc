"""A library that runs single kernels by number, to compare their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from luminal.codegen import headers, render, toolchain
from luminal.codegen.built import Product, Unit
from luminal.codegen.emitter import emit
from luminal.codegen.host import INCLUDE
from luminal.core.schedule.program.ir import Kernel
from luminal.core.target import Target

_NAMESPACE = "timed"
_LINKS = ("-shared", "-static-libgcc", "-Wl,--as-needed", "-Wl,-z,defs", "-pthread", "-lm")


def product(kernels: Sequence[Kernel], target: Target) -> Product:
    """The library of ``kernels`` for a CPU, numbered by their order here. A kernel is called with its arrays and, where
    it takes them, a status and the sizes of its nest's dimensions in order.

    Raises BuildError where there is no compiler.
    """
    common = (f"-DLM_NAMESPACE={_NAMESPACE}", headers.namespace(*target.flags), f"-I{INCLUDE}")
    # There is no later kernel to prefetch for.
    named = [replace(kernel, name=f"kernel{number}", fetches=False) for number, kernel in enumerate(kernels)]
    ahead = target.costs.prefetch
    texts = [emit(k, {dim.name: n for n, dim in enumerate(k.nest.dims)}, prefetch=ahead) for k in named]
    features = dict.fromkeys(feature for text in texts for unit in text.units for feature in unit.features)
    flags = (*target.using(features).flags, *render.COMMON_FLAGS, *common)
    units = {
        f"kernels/{kernel.name}.cpp": Unit(render.kernel_text(text), flags, kernel, headers.VECTORS)
        for kernel, text in zip(named, texts, strict=True)
    }
    signatures = [text.signature for text in texts]
    table = render.environment().get_template("timed.cpp.j2").render(signatures=signatures, features=features)
    units["timed.cpp"] = Unit(table, (*render.LIBRARY_FLAGS, *common))
    return Product("libtimed.so", toolchain.find(target.architecture), units, _LINKS)
