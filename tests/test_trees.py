"""Ensembles of trees as converters write them, against onnxruntime; how they are grouped, and what a walk reads."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import luminal
from luminal.core import ops
from luminal.core.rewrite import simplify
from luminal.core.traverse import everything
from luminal.frontends.onnx import importer, siblings, trees
from tests import onnx_models as models
from tests.onnx_models import Array, declared, floats

ML = {"ai.onnx.ml": 3}
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
STRANGE = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3.4028235e38, -3.4028235e38], np.float32)


def grown(depths: list[int], modes: list[str], kind: str, targets: Any, *, seed: int = 0, missing: bool = False) -> Any:
    """Attributes of trees of these depths, of random shape; ``targets(tree, leaf)`` lists what a leaf votes for."""
    random = np.random.default_rng(seed)
    found: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "modes", "values", "featureids", "truenodeids", "falsenodeids",
                              "missing_value_tracks_true")
    }  # fmt: skip
    votes: dict[str, list[Any]] = {"treeids": [], "nodeids": [], "ids": [], "weights": []}

    def add(tree: int, number: int, mode: str, sides: tuple[int, int]) -> None:
        split = float(random.choice([*STRANGE.tolist(), *random.standard_normal(8).tolist()]))
        row = (tree, number, mode, split, int(random.integers(5)), *sides, int(missing and random.integers(2)))
        for values, value in zip(found.values(), row, strict=True):
            values.append(value)

    for tree, depth in enumerate(depths):
        waiting, used, leaf = [(0, 0)], 1, 0
        while waiting:
            number, level = waiting.pop()
            deeper = level < depth and (not waiting or random.integers(3))
            if deeper:
                add(tree, number, modes[int(random.integers(len(modes)))], (used, used + 1))
                waiting += [(used, level + 1), (used + 1, level + 1)]
                used += 2
                continue
            add(tree, number, "LEAF", (0, 0))
            for target in targets(tree, leaf):
                vote = (tree, number, target, float(random.standard_normal()))
                for values, value in zip(votes.values(), vote, strict=True):
                    values.append(value)
            leaf += 1
    return {f"nodes_{name}": values for name, values in found.items()} | {
        f"{kind}_{name}": values for name, values in votes.items()
    }


def samples(count: int = 64) -> Array:
    x = floats(count, 5, seed=3)
    x[:16] = np.random.default_rng(1).choice(STRANGE, (16, 5))
    return x


def regressor(attributes: dict[str, Any], **more: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    return models.one("TreeEnsembleRegressor", samples(), domain="ai.onnx.ml", version=3, **attributes, **more)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("modes", [*([mode] for mode in MODES), MODES[:4], MODES])
def test_every_outcome_of_a_comparison_leads_where_onnxruntime_goes(modes: list[str], missing: bool) -> None:
    attributes = grown([0, 3, 4, 6], modes, "target", lambda tree, leaf: [0], missing=missing)
    proto, given = regressor(attributes, n_targets=1)
    models.assert_close(models.imported(proto, given), models.by_onnxruntime(proto, given))


@pytest.mark.parametrize(
    ("count", "targets"),
    [
        (3, lambda tree, leaf: range(3)),  # all of them at each leaf
        (3, lambda tree, leaf: [tree % 3]),  # a tree for each
        (4, lambda tree, leaf: [tree * tree % 4]),  # unevenly, and for one none
        (4, lambda tree, leaf: [2]),  # for one alone
        (60, lambda tree, leaf: [(tree + 7 * leaf) % 60]),  # a few of many
        (2, lambda tree, leaf: range(leaf % 3 % 2)),  # leaves without votes
        (2, lambda tree, leaf: [1, 1]),  # two votes for the same
        (40, lambda tree, leaf: [tree % 40]),  # a tree or two for each of many
    ],
)
def test_votes_are_summed_by_target(count: int, targets: Any) -> None:
    depths = [1, 5, 2, 9, 3, 7, 4] * 10
    proto, given = regressor(grown(depths, MODES[:1], "target", targets), n_targets=count)
    wanted = models.by_onnxruntime(proto, given)
    models.assert_close(models.imported(proto, given), wanted, tolerance=3e-6)
    models.assert_close([*luminal.compile(proto).run(given).values()], wanted, tolerance=3e-6)


def test_a_vote_that_is_infinite_is_not_multiplied() -> None:
    attributes = grown([3] * 6, MODES[:1], "target", lambda tree, leaf: [tree % 3])
    attributes["target_weights"][0] = np.inf
    proto, given = regressor(attributes, n_targets=3)
    found, wanted = models.imported(proto, given), models.by_onnxruntime(proto, given)
    assert np.isinf(wanted[0]).any() and not np.isnan(wanted[0]).any()
    models.assert_close(found, wanted)


def test_trees_of_about_the_same_depth_are_walked_together() -> None:
    depths = np.array([2] * 40 + [3] * 30 + [12] * 30)
    groups = trees._groups(depths)
    assert [(g.start, g.stop) for g in groups] == [(0, 68), (68, 100)]
    assert trees._groups(np.array([7] * 50)) == [slice(0, 50)]
    assert trees._groups(np.array([1, 9])) == [slice(0, 2)]
    many = trees._groups(np.sort(np.random.default_rng(0).integers(1, 20, 5000)))
    assert 1 < len(many) <= 3 and many[0].start == 0 and many[-1].stop == 5000


def test_a_step_reads_four_numbers() -> None:
    """A feature's number, its value, a split, the next place: for each sample and tree, whatever the modes."""
    attributes = grown([3] * 8, MODES[:4], "target", lambda tree, leaf: [0])
    proto, _ = regressor(attributes, n_targets=1)
    graph = simplify(importer.load(proto))
    reads = [node for node in everything(graph.results) if node.op is ops.GATHER]
    assert len(reads) <= 4 * 3 + 1


# ---- forests that are written tree by tree -------------------------------------------------------------------------


def forest(count: int, **changed: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Trees with an operator each, over values that are computed alike; what follows is a function of the leaf."""
    nodes = []
    for k in range(count):
        attributes = grown([k % 4 + 1], MODES[:1], "target", lambda tree, leaf: [0], seed=k)
        attributes["target_weights"] = [float(number) for number in attributes["target_nodeids"]]
        attributes |= {"n_targets": 1} | (changed if k == 1 else {})
        keys = attributes["target_nodeids"]
        nodes += [
            models.node("Gather", "x columns", f"x{k}", axis=1),
            helper.make_node("TreeEnsembleRegressor", [f"x{k}"], [f"leaf{k}"], domain="ai.onnx.ml", **attributes),
            helper.make_node("Cast", [f"leaf{k}"], [f"id{k}"], to=onnx.TensorProto.INT64),
            helper.make_node("LabelEncoder", [f"id{k}"], [f"length{k}"], domain="ai.onnx.ml", keys_int64s=keys,
                             values_floats=floats(len(keys), seed=k).tolist(), default_float=-9.0),
            models.node("Exp", f"length{k}", f"e{k}"),
        ]  # fmt: skip
    nodes.append(helper.make_node("Sum", [f"e{k}" for k in range(count)], ["y"]))
    nodes.sort(key=lambda node: node.op_type not in ("Gather", "TreeEnsembleRegressor"))
    x = samples()
    proto = models.model(
        nodes, [declared("x", x, ["n", 5])], ["y", "leaf0"], initializers={"columns": np.arange(5)}, domains=ML
    )
    return proto, {"x": x}


@pytest.mark.parametrize("count", [2, 3, 20])
def test_trees_side_by_side_become_one_ensemble(count: int) -> None:
    proto, given = forest(count)
    made = siblings.joined(proto.graph.node)
    (one,) = [node for node in made if node.op_type == "TreeEnsembleRegressor"]
    assert list(one.output) == [f"leaf{k}" for k in range(count)]
    wanted = models.by_onnxruntime(proto, given)
    models.assert_close(models.imported(proto, given), wanted)
    models.assert_close([*luminal.compile(proto).run(given).values()], wanted)


@pytest.mark.parametrize(
    "changed",
    [
        {"n_targets": 2},
        {"aggregate_function": "MAX"},
        {"post_transform": "LOGISTIC"},
        {"base_values": [0.5]},
    ],
)
def test_trees_that_do_more_stay_apart(changed: dict[str, Any]) -> None:
    proto, _ = forest(3, **changed)
    made = siblings.joined(proto.graph.node)
    assert [len(node.output) for node in made if node.op_type == "TreeEnsembleRegressor"] == [2, 1]


def test_trees_over_other_values_stay_apart() -> None:
    proto, _ = forest(4)
    for node in proto.graph.node:
        if node.output[0] in ("x1", "x3"):
            node.attribute[0].i = 0
            node.input[1] = "rows"
    made = siblings.joined(proto.graph.node)
    outputs = [list(node.output) for node in made if node.op_type == "TreeEnsembleRegressor"]
    assert outputs == [["leaf0", "leaf2"], ["leaf1", "leaf3"]]


def test_what_follows_a_leaf_is_read_with_it() -> None:
    """The chain behind each tree is one look-up."""
    proto, _ = forest(6)
    proto.graph.output.pop()
    graph = simplify(importer.load(proto))
    assert not [node for node in everything(graph.results) if node.op is ops.EXP2]
