"""Placements of PyTorch's DTensors and plans of parallelize_module, as what ``shard`` says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from luminal import api, dtensors, meshes
from luminal.core.errors import InputError
from tests.test_mesh import FREE

MESH = {"tensor": 2}
PLAN = {
    "layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel(), "layers.*.norm": SequenceParallel(),
    "layers.*": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
}  # fmt: skip


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def device_mesh() -> Iterator[DeviceMesh]:
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    torch.distributed.destroy_process_group()


def test_a_plan_of_parallelize_module() -> None:
    """Weights lie as it says, which is Megatron's way; the rest follows."""
    model = Model().eval()
    axes, shard = meshes.read(MESH, PLAN, model)
    assert shard["layers.1.up.weight"] == {"tensor": 0} and shard["layers.0.up.bias"] == {"tensor": 0}
    assert shard["layers.0.down.weight"] == {"tensor": 1} and shard["layers.0.down.bias"] == {"tensor": None}
    assert shard["layers.1.norm.weight"] == {"tensor": None} and len(shard) == 12
    assert meshes.read(MESH, {"tensor": PLAN}, model)[1] == shard
    assert meshes.read({"data": 2, "tensor": 2}, {"tensor": PLAN}, model)[1] == shard
    found = meshes.divided({"main": api.read(model, (torch.zeros(1, 16),))}, axes, shard, FREE)
    cuts = found.cuts["main"]
    for layer in "01":
        assert cuts[f"layers.{layer}.up.weight"] == ("axis 0 in parts of 16 along tensor",)
        assert cuts[f"layers.{layer}.down.weight"] == ("axis 1 in parts of 16 along tensor",)
    whole = meshes.read(MESH, ColwiseParallel(), nn.Linear(4, 4))[1]
    assert whole == {"weight": {"tensor": 0}, "bias": {"tensor": 0}}
    words = nn.Sequential(nn.Embedding(8, 4), nn.Embedding(8, 4))
    given = meshes.read(MESH, {"0": ColwiseParallel(), "1": RowwiseParallel()}, words)[1]
    assert given == {"0.weight": {"tensor": 1}, "1.weight": {"tensor": 0}}


def test_tied_parameters_have_one_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert meshes.read(MESH, {"1": RowwiseParallel()}, model)[1] == {"0.weight": {"tensor": 1}}


def test_dtensors_placements_and_a_mesh_of_pytorch(device_mesh: DeviceMesh) -> None:
    assert meshes.read(device_mesh, "auto", None) == ({"tensor": 2}, "auto")
    up = distribute_tensor(torch.zeros(32, 16), device_mesh, [Shard(0)])
    whole = distribute_tensor(torch.zeros(16), device_mesh, [Replicate()])
    given = {"up.weight": up, "norm.weight": whole, "down.weight": Shard(1), "down.bias": [Replicate()], "x": None}
    assert meshes.read(device_mesh, given, None)[1] == {
        "up.weight": {"tensor": 0}, "norm.weight": {"tensor": None}, "down.weight": {"tensor": 1},
        "down.bias": {"tensor": None}, "x": None,
    }  # fmt: skip
    both = {"w": (Replicate(), Shard(1))}
    assert dtensors.shard(both, {"data": 2, "tensor": 2}, None) == {"w": {"data": None, "tensor": 1}}
    with pytest.raises(InputError, match=r"'up.weight' lies on a mesh \{'tensor': 2\}, expected \{'tensor': 4\}"):
        dtensors.shard({"up.weight": up}, {"tensor": 4}, None)


@pytest.mark.parametrize(
    ("mesh", "shard", "message"),
    [
        (MESH, {"w": [Shard(0), Shard(1)]}, "a placement for each axis of tensor for 'w'"),
        (MESH, {"w": Partial()}, "expected Shard or Replicate for 'w'"),
        (MESH, {"layers.7": ColwiseParallel()}, "the plan names 'layers.7', and the model has no such module"),
        (MESH, {"layers.0.norm": ColwiseParallel()}, "ColwiseParallel for 'layers.0.norm', a LayerNorm"),
        ({"data": 2, "tensor": 2}, PLAN, r"expected a plan for an axis, \{AXIS: PLAN\}, as the mesh has data, tensor"),
    ],
)
def test_what_is_refused(mesh, shard, message: str) -> None:
    with pytest.raises(InputError, match=message):
        meshes.read(mesh, shard, Model())
    with pytest.raises(InputError, match=r"is for a torch\.nn\.Module"):
        meshes.read(MESH, PLAN, "model.onnx")
