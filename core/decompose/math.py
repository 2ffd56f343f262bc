"""Elementwise operators by name: one address for the front ends. Each theme has its own module."""

# ruff: noqa: F403 - whatever a theme defines is meant

from luminal.core.decompose.activation import *
from luminal.core.decompose.arithmetic import *
from luminal.core.decompose.compare import *
from luminal.core.decompose.error_function import *
from luminal.core.decompose.exponential import *
from luminal.core.decompose.gamma import *
from luminal.core.decompose.hyperbolic import *
from luminal.core.decompose.power import *
from luminal.core.decompose.trigonometric import *
