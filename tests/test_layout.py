"""The repository's layout: who may import whom, what loads lazily, and which words the scheduler may not know."""

import ast
import io
import keyword
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("frontends", "core", "codegen", "runtime")
NUMERIC = frozenset({"numpy", "ml_dtypes"})

# What each folder may import besides the standard library; the longest matching folder decides.
ALLOWED: dict[str, frozenset[str]] = {
    "core": NUMERIC | {"luminal.core"},
    "frontends": NUMERIC | {"luminal.core", "luminal.frontends"},
    "frontends/onnx": NUMERIC | {"luminal.core", "luminal.frontends.onnx", "onnx", "google.protobuf"},
    "frontends/fx": NUMERIC | {"luminal.core", "luminal.frontends.fx", "torch"},
    "frontends/llm": NUMERIC | {"luminal.core", "luminal.frontends.llm"},
    "codegen": NUMERIC | {"luminal.core", "luminal.codegen", "jinja2", "cmake", "ninja", "pybind11", "ziglang"},
    "runtime": NUMERIC | {"luminal.runtime"},
}
# After decomposition there are only primitives: no operator's, layer's or model's name steers what follows.
NAMELESS = ("core", "codegen", "runtime")
NAMED = ("core/decompose",)
OPERATORS = frozenset(
    {"softmax", "logsoftmax", "conv", "convolution", "attention", "sdpa", "gemm", "matmul", "dropout", "embedding"}
    | {"relu", "gelu", "silu", "sigmoid", "layernorm", "rmsnorm", "batchnorm", "groupnorm", "maxpool", "avgpool"}
    | {"lstm", "gru", "rnn", "score", "scores", "logits", "causal", "query", "queries", "heads"}
)
MODELS = frozenset({"bert", "minilm", "resnet", "llama", "tinyllama", "gpt", "vit", "mistral", "whisper"})
# Functions of NVIDIA's driver, which the runtime can call by no other names.
OTHERS = frozenset({"cuStreamQuery", "cuEventQuery"})
# Frameworks that `import luminal` must not pull in: each belongs to one kind of user only.
FRAMEWORKS = frozenset({"torch", "onnx", "onnxruntime", "transformers", "openvino"})

# The words of an identifier: `rowSoftmax_2d` is row, softmax, d; `LSTMCell` is lstm, cell.
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def python_files(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The modules that a tree imports, function bodies included, as ``(line, dotted name)``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from luminal import core` imports luminal.core: the names may be modules, so each counts by itself.
            prefix = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def permitted(module: str, allowed: frozenset[str]) -> bool:
    if module.split(".")[0] in sys.stdlib_module_names:
        return True
    return any(module == name or module.startswith(name + ".") for name in allowed)


def allowance(file: str) -> frozenset[str]:
    folder = max((name for name in ALLOWED if file.startswith(name + "/")), key=len)
    return ALLOWED[folder]


@pytest.mark.parametrize("part", PARTS)
def test_import_directions(part: str) -> None:
    wrong = []
    for path in python_files(part):
        file = relative(path)
        found = imports(ast.parse(path.read_text(), filename=file))
        wrong += [f"{file}:{line}: {name}" for line, name in found if not permitted(name, allowance(file))]
    assert not wrong, "imports against the directions of the layout:\n" + "\n".join(wrong)


SCHEDULE = ROOT / "core/schedule"
SCHEDULER = "luminal.core.schedule"


def schedule_order() -> list[str]:
    """The packages of core/schedule, as its docstring orders them: each imports only those before it."""
    (order,) = re.findall(r"^ +(\w+(?: < \w+)+)$", (SCHEDULE / "__init__.py").read_text(), re.MULTILINE)
    return order.split(" < ")


def test_only_the_pipeline_hands_graphs_to_the_scheduler() -> None:
    """What rewrites graphs before contractions are found, such as the algebra, knows nothing of schedules."""
    wrong = []
    for path in python_files("core"):
        file = relative(path)
        if not file.startswith("core/schedule/") and file != "core/pipeline.py":
            found = imports(ast.parse(path.read_text(), filename=file))
            wrong += [f"{file}:{line}: {name}" for line, name in found if name.startswith(SCHEDULER)]
    assert not wrong, "imports of the scheduler in earlier stages:\n" + "\n".join(wrong)


def test_the_packages_of_the_scheduler_import_in_their_order() -> None:
    order = schedule_order()
    assert sorted(order) == sorted(path.parent.name for path in SCHEDULE.glob("*/__init__.py"))
    assert [path.name for path in SCHEDULE.glob("*.py")] == ["__init__.py"]
    wrong = []
    for path in python_files("core/schedule"):
        if path.parent == SCHEDULE:
            continue
        allowed = order[: order.index(path.parent.name) + 1]
        for line, name in imports(ast.parse(path.read_text())):
            package = re.match(r"luminal\.core\.schedule\.(\w+)", name)
            if package and package[1] not in allowed:
                wrong.append(f"{relative(path)}:{line}: {name}")
    assert not wrong, "imports against the order in core/schedule/__init__.py:\n" + "\n".join(wrong)


def test_each_package_of_the_scheduler_says_what_it_may_touch() -> None:
    for package in schedule_order():
        docstring = ast.get_docstring(ast.parse((SCHEDULE / package / "__init__.py").read_text()))
        assert docstring and docstring.endswith("."), package


def modules() -> dict[str, Path]:
    """The modules of luminal by their dotted names."""
    found = {}
    for folder, prefix in (*((part, f"luminal.{part}") for part in PARTS), ("src/luminal", "luminal")):
        for path in python_files(folder):
            if folder == "src/luminal" and path.resolve() != path:
                continue  # reached through a link
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([prefix, *(part for part in parts if part != "__init__")])] = path
    return found


LINES = 600  # of a file that a reader still keeps in their head


def line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_files_are_short() -> None:
    long = sorted(relative(path) for path in modules().values() if line_count(path) > LINES)
    assert not long, f"longer than {LINES} lines: {long}"
    assert line_count(ROOT / "README.md") <= 200
    assert sum(path.is_file() for path in SCHEDULE.iterdir()) <= 10


def test_no_imports_go_in_a_circle() -> None:
    """Not inside functions either, nor for types alone."""
    known = modules()
    needs: dict[str, set[str]] = {}
    for name, path in known.items():
        found = {imported for _, imported in imports(ast.parse(path.read_text()))}
        # `from a.b import c` names a.b.c, which may be a function of a.b.
        needs[name] = {m if m in known else m.rpartition(".")[0] for m in found} & known.keys() - {name}
    while free := {name for name, others in needs.items() if not others & needs.keys()}:
        needs = {name: others for name, others in needs.items() if name not in free}
    # What is left is a circle, or needs one.
    while ends := {name for name in needs if not any(name in others for others in needs.values())}:
        needs = {name: others for name, others in needs.items() if name not in ends}
    assert not needs, "in circles: " + ", ".join(sorted(needs))


def test_imports_are_absolute() -> None:
    wrong = [
        f"{relative(path)}:{line}: {name}"
        for folder in (*PARTS, "src/luminal", "tests", "benchmarks", "examples")
        for path in python_files(folder)
        for line, name in imports(ast.parse(path.read_text()))
        if name.startswith(".")
    ]
    assert not wrong, "relative imports:\n" + "\n".join(wrong)


# Modules that nothing of luminal imports: a framework does, or a tool of its own.
LOADED_BY = {"dynamo.py": "torch", "onnx_backend.py": "onnx"}


def test_the_public_face_imports_frameworks_inside_functions_only() -> None:
    wrong = []
    for path in sorted((ROOT / "src/luminal").glob("**/*.py")):
        if path.resolve() != path or path.name in LOADED_BY:
            continue  # reached through a link: held by test_import_directions; or loaded by the framework itself
        tree = ast.parse(path.read_text())
        lazy = {
            id(inner)
            for outer in ast.walk(tree)
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(outer)
            for inner in ast.walk(outer)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in lazy:
                found = {name.split(".")[0] for _, name in imports(node)} & FRAMEWORKS
                wrong += [f"{relative(path)}:{node.lineno}: {name}" for name in sorted(found)]
    assert not wrong, "frameworks imported while luminal itself is imported:\n" + "\n".join(wrong)
    for name in LOADED_BY:
        loaded = f"luminal.{name.removesuffix('.py')}"
        importers = [path for path in python_files("src/luminal") if loaded in path.read_text()]
        assert not importers, importers


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tests", capture_output=True, text=True)


def test_importing_luminal_loads_no_framework() -> None:
    result = run("import sys, luminal; print(*sys.modules)")
    assert result.returncode == 0, result.stderr
    assert not FRAMEWORKS & set(result.stdout.split())


@pytest.mark.parametrize(("package", "blocked"), [("onnx", "torch"), ("fx", "onnx")])
def test_a_front_end_loads_without_the_other_framework(package: str, blocked: str) -> None:
    result = run(
        "import importlib, pkgutil, sys\n"
        f"sys.modules[{blocked!r}] = None\n"  # any import of it now raises ImportError
        "import luminal\n"
        f"front_end = importlib.import_module('luminal.frontends.{package}')\n"
        "for module in pkgutil.walk_packages(front_end.__path__, front_end.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("part", PARTS)
def test_a_folder_refuses_to_load_under_a_second_name(part: str) -> None:
    result = run(f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {part}")
    assert result.returncode != 0
    assert f"ImportError: this package is luminal.{part}" in result.stderr


@pytest.mark.parametrize("part", PARTS)
def test_the_package_is_linked_to_its_folder(part: str) -> None:
    link = ROOT / "src/luminal" / part
    assert link.is_symlink()
    assert link.readlink() == Path("../..", part)
    assert link.resolve() == ROOT / part


def repository_files() -> list[Path]:
    """What a commit of the working tree would hold: tracked files, and new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout: which files belong to the repository is not known")
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_every_package_has_an_init_and_content() -> None:
    files = [file for file in repository_files() if relative(file).split("/")[0] in PARTS]
    packages = {file.parent for file in files if file.suffix == ".py"}
    missing = sorted(relative(folder) for folder in packages if folder / "__init__.py" not in files)
    assert not missing, f"modules in folders without __init__.py: {missing}"
    full = {folder for file in files if file.name != "__init__.py" for folder in file.parents}
    empty = sorted(relative(folder) for folder in packages - full)
    assert not empty, f"packages with nothing but an __init__.py: {empty}"


def test_every_decomposition_is_used() -> None:
    """A function that no front end reaches is tested for nobody, and hides that a front end spells it again."""
    files = [path for part in ("core", "frontends") for path in python_files(part)]
    trees = {path: ast.parse(path.read_text(), str(path)) for path in files}
    used = {
        node.id if isinstance(node, ast.Name) else node.attr
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }
    unused = [
        f"{relative(path)}: {node.name}"
        for path, tree in trees.items()
        if relative(path).startswith("core/decompose/")
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name not in used
    ]
    assert not unused, "\n".join(unused)


def words(text: str) -> set[str]:
    """The words of each identifier in a text, and each two neighbours as one: ``layer_norm`` is also layernorm."""
    found: set[str] = set()
    for identifier in set(re.findall(r"\w+", text)) - OTHERS:
        parts = [word.lower() for word in WORD.findall(identifier)]
        found.update(parts, map("".join, pairwise(parts)))
    return found


def docstrings(tree: ast.AST) -> set[int]:
    owners = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)
    }


def python_words(source: str) -> Iterator[tuple[int, set[str]]]:
    """The words of a module's identifiers and strings with their lines; comments and docstrings may explain freely."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            yield token.start[0], words(token.string)
    tree = ast.parse(source)
    explained = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in explained:
            yield node.lineno, words(node.value)


# C++, CUDA, Metal and Jinja comments: /* */, //, {# #}. A `//%` line is a Jinja statement, hence code.
COMMENT = re.compile(r"/\*.*?\*/|\{#.*?#\}|//(?!%)[^\n]*", re.DOTALL)


def text_words(source: str) -> Iterator[tuple[int, set[str]]]:
    code = COMMENT.sub(lambda match: "\n" * match.group().count("\n"), source)
    for number, line in enumerate(code.splitlines(), 1):
        yield number, words(line)


def nameless_files() -> list[Path]:
    files = (path for folder in NAMELESS for path in (ROOT / folder).rglob("*") if path.is_file())
    suffixes = {".py", ".h", ".hpp", ".c", ".cpp", ".cu", ".mm", ".j2", ".txt", ".cmake", ".pyi"}
    return sorted(path for path in files if path.suffix in suffixes and not relative(path).startswith(NAMED))


def test_no_operator_or_model_is_known_after_decomposition() -> None:
    wrong = []
    for path in nameless_files():
        found = python_words if path.suffix in {".py", ".pyi"} else text_words
        for line, names in found(path.read_text()):
            wrong += [f"{relative(path)}:{line}: {name}" for name in sorted(names & (OPERATORS | MODELS))]
    assert not wrong, "names of operators or models where only structure may count:\n" + "\n".join(wrong)


TARGETS = frozenset(
    {"cuda", "nvidia", "metal", "apple", "sm", "neon", "avx", "avx2", "avx512", "amx", "aarch64", "x86"}
)
# The descriptions of targets, what this machine has, and switches of the environment.
DESCRIPTIONS = ("core/target.py", "core/matrix.py", "core/device.py", "core/config.py")


def test_no_pass_knows_a_target_by_name() -> None:
    files = [path for path in python_files("core") if relative(path) not in DESCRIPTIONS]
    wrong = [
        f"{relative(path)}:{line}: {name}"
        for path in files
        for line, found in python_words(path.read_text())
        for name in sorted(found & TARGETS)
    ]
    assert not wrong, "names of targets where only their descriptions may count:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("row_softmax", "softmax"),
        ("isConv2d", "conv"),
        ("GEMM_TILE", "gemm"),
        ("LSTMCell", "lstm"),
        ("layer_norm", "layernorm"),
        ("ResNet", "resnet"),
        ("a call of x.llama", "llama"),
    ],
)
def test_words_are_found_inside_identifiers(text: str, name: str) -> None:
    assert name in words(text)


def test_words_do_not_match_parts_of_others() -> None:
    assert not words("convert conversion reluctant vital max thread_pool") & (OPERATORS | MODELS)
    assert words("stream_query") & OPERATORS and not words('"cuStreamQuery"') & OPERATORS


def test_comments_and_docstrings_may_explain() -> None:
    python = 'def f():\n    """A softmax row."""\n    return 1  # relu\n'
    assert not set().union(*(found for _, found in python_words(python))) & OPERATORS
    text = "int a; // relu\n/* conv\n softmax */ int b;\n//% if softmax\n"
    assert [line for line, found in text_words(text) if found & OPERATORS] == [4]


# The numbers of modules, by what they are. Those of machines stand in the descriptions of targets instead, with unit
# and origin: core/costs.py, grid.py, matrix.py and target.py.
NUMBERS = {
    "accuracy": {
        "choose/contraction.py: TERMS_PER_BLOCK", "numeric/digits.py: GUARD", "numeric/winograd.py: LARGEST",
        "numeric/long_reductions.py: ACCURATE_TERMS", "numeric/quantise.py: LEAST_ELEMENTS", "patterns.py: SMALLEST",
        "numeric/activations.py: BLOCK", "choose/scheduler.py: STEPS_OF_PART",
        "law.py: _CANCELLING", "law.py: _SHARE", "terms.py: _ROUNDING", "triangular.py: _ROUNDINGS",
    },
    "what types hold": {
        "integers.py: LIMIT", "numeric/digits.py: ALL", "numeric/integers.py: EXACT", "statements.py: MOVES",
        "numeric/integers.py: LEAST_SCALE", "numeric/integers.py: MOST_SCALE",
        "checkpoints.py: _ALIGNMENT", "checkpoints.py: _LINE", "toolchain.py: _CLANGS",
        "transform/tensorise.py: SHARING",
    },
    "limit of a form": {
        "numeric/winograd.py: TAPS", "nest/carried.py: FACTORS", "transform/transpose.py: INTERLEAVED",
        "stage.py: WORTH", "choice.py: NEAR", "by_size.py: SAVED", "by_size.py: ROOM", "numeric/looked_up.py: FEWER",
        "fusion/order.py: LAG", "fusion/order.py: MOST", "transform/accumulate.py: SELDOM",
    },
    "effort of this compiler, and of the compilers behind it": {
        "build.py: _SHARING", "choose/neighbours.py: TRIED", "contraction.py: ENUMERATED", "render.py: _FRAMES",
        "threads.py: TURNS",
        "fusion/fuse.py: MOST_NESTED", "nest/footprint.py: BOUNDS", "numeric/bit_maxima.py: MOST_TAPS",
        "numeric/winograd.py: SAMPLED_FILTERS", "numeric/winograd.py: SAMPLED_TILES", "factoring.py: MOST",
        "factoring.py: INDICATOR",
        "paths.py: EXACT", "paths.py: KEPT", "triangular.py: BLOCKS", "triangular.py: LEAST", "triangular.py: WORK",
        "numeric/looked_up.py: MOST_NESTED", "numeric/online.py: MOST_NODES", "numeric/online.py: MOST_NESTED",
        "numeric/strips.py: MOST_NODES",
        "program/recompute.py: LONGEST", "program/recompute.py: SHARE",
    },
    "format": {
        "cache.py: _CHUNK", "cuda.py: _DRIVER", "cuda.py: _FIRST", "names.py: LONGEST", "program/interpreter.py: FRESH",
        "program/ir.py: ALIGNMENT", "weights.py: CHUNK_BYTES", "weights.py: HASH_BYTES", "weights.py: ID_BYTES",
        "weights.py: PAYLOAD_OFFSET", "weights.py: _BLOCK_ROWS", "weights.py: _GOLDEN", "weights.py: _MASK",
        "weights.py: _ROW_WORDS",
    },
}  # fmt: skip


def has_number(value: ast.AST) -> bool:
    """Whether an expression is made of numbers and texts alone, with a number that ``is_size``."""
    parts = list(ast.walk(value))
    made = any(isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Name) and part.id != "range") for part in parts)
    return not made and any(isinstance(part, ast.Constant) and is_size(part.value) for part in parts)


def is_size(value: object) -> bool:
    """Whether ``value`` may say how large, how many or how long; 0, 1 and 2 are ends, steps, halves and signs."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value not in (0, 1, 2)


def named_numbers(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and has_number(node.value):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def test_a_number_of_a_module_says_that_it_is_none_of_a_machine() -> None:
    folders = ("core/schedule", "core/algebra", "codegen")
    found = {
        f"{path.relative_to(ROOT / folder).as_posix()}: {name}"
        for folder in folders
        for path in python_files(folder)
        for name in named_numbers(ast.parse(path.read_text()))
    }
    listed = set().union(*NUMBERS.values())
    moved = "core/costs.py, grid.py, matrix.py or target.py if it is one of a machine; else say in NUMBERS what it is"
    assert found <= listed, f"{sorted(found - listed)}: numbers of modules; move them to {moved}"
    assert listed <= found, f"{sorted(listed - found)}: no such numbers are there"


# Numbers inside functions of the packages that choose and estimate: by file, with the reason.
UNNAMED = {
    "core/schedule/choose/cpu.py": {3, 6, 8},  # factors between candidates that are measured; bits of a byte
    "core/schedule/choose/grid.py": {4},  # factors between candidates
    "core/schedule/cost/kernel.py": {8},  # bits of a byte
}


def test_choices_and_estimates_have_no_unnamed_numbers() -> None:
    wrong = []
    for path in (path for package in ("choose", "cost") for path in python_files(f"core/schedule/{package}")):
        functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
        numbers = {part for node in functions for part in ast.walk(node) if isinstance(part, ast.Constant)}
        allowed = UNNAMED.get(relative(path), set())
        wrong += [
            f"{relative(path)}:{n.lineno}: {n.value}" for n in numbers if is_size(n.value) and n.value not in allowed
        ]
    assert not wrong, "numbers that belong to the description of a target:\n" + "\n".join(sorted(wrong))
