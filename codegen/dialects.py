"""The languages that kernels are written in, by the name that targets give them."""

from __future__ import annotations

from luminal.codegen.dialect_cpp import CPP
from luminal.codegen.dialect_cuda import CUDA
from luminal.codegen.dialect_metal import METAL
from luminal.codegen.dialect_opencl import OPENCL

ALL = {dialect.name: dialect for dialect in (CPP, CUDA, METAL, OPENCL)}
