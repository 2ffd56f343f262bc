"""Image classifiers: convolutional networks and a transformer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import transformers
from torch import nn
from transformers.initialization import no_init_weights

from benchmarks.zoo.model import Model
from benchmarks.zoo.weights import randomise

CLASSES = 1000  # of ImageNet


class ImageClassifier(nn.Module):
    """Logits of an image."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(pixel_values=pixel_values).logits
        return logits


def resnet50(depths: tuple[int, ...] = (3, 4, 6, 3), batch: int = 2, size: int = 224) -> Model:
    """ResNet-50 (He et al., 2015); 25.6 M parameters at full ``depths``."""
    config = transformers.ResNetConfig(depths=list(depths), num_labels=CLASSES)
    with no_init_weights():
        network = transformers.ResNetForImageClassification(config)
    # The last normalisation of a residual branch adds to the shortcut; a smaller share keeps the sum near one.
    return _classifier(network, batch, size, {"layer.2.normalization": 0.4})


def resnet18(depths: tuple[int, ...] = (2, 2, 2, 2), batch: int = 2, size: int = 224) -> Model:
    """ResNet-18 (He et al., 2015); 11.7 M parameters at full ``depths``."""
    widths = [64, 128, 256, 512]
    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=widths, depths=list(depths), layer_type="basic", num_labels=CLASSES
    )
    with no_init_weights():
        network = transformers.ResNetForImageClassification(config)
    return _classifier(network, batch, size, {"layer.1.normalization": 0.4})


def vgg16(repeats: tuple[int, ...] = (2, 2, 3, 3, 3), batch: int = 2, size: int = 224) -> Model:
    """The convolutions of VGG-16 (Simonyan and Zisserman, 2014), ``repeats`` of them before each pooling; 14.7 M
    parameters."""
    layers: list[nn.Module] = []
    channels = 3
    for stage, count in enumerate(repeats):
        for _ in range(count):
            width = min(64 << stage, 512)
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return _of_images(nn.Sequential(*layers).eval(), batch, size)


def mobilenet(repeats: bool = True, batch: int = 2, size: int = 224) -> Model:
    """MobileNetV2 (Sandler et al., 2018); 3.5 M parameters. Without ``repeats`` it has no more than the 7 of its 17
    blocks that change the number of channels or the resolution."""
    with no_init_weights():
        network = transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config(num_labels=CLASSES))
    blocks = network.mobilenet_v2.layer
    network.mobilenet_v2.layer = nn.ModuleList(block for block in blocks if repeats or not block.use_residual)
    return _classifier(network, batch, size, shift=1.0)


def convnext(depths: tuple[int, ...] = (3, 3, 9, 3), batch: int = 2, size: int = 224) -> Model:
    """ConvNeXt-T (Liu et al., 2022); 28.6 M parameters at full ``depths``."""
    config = transformers.ConvNextConfig(depths=list(depths), num_labels=CLASSES)
    with no_init_weights():
        network = transformers.ConvNextForImageClassification(config)
    model = _classifier(network, batch, size)
    for name, parameter in network.named_parameters():
        if name.endswith("layer_scale_parameter"):  # the share of a residual branch
            parameter.data.add_(0.4)
    return model


def vit(layers: int = 12, batch: int = 2, size: int = 224) -> Model:
    """ViT-B/16 (Dosovitskiy et al., 2020); 86.6 M parameters at 12 layers and 224 pixels."""
    config = transformers.ViTConfig(num_hidden_layers=layers, image_size=size, num_labels=CLASSES)
    with no_init_weights():
        network = transformers.ViTForImageClassification(config)
    # Branches that end in these add to the residual stream.
    return _classifier(network, batch, size, {"attention.o_proj": 0.3, "mlp.fc2": 0.3})


def _classifier(
    network: nn.Module, batch: int, size: int, deviations: Mapping[str, float] | None = None, shift: float = 0.0
) -> Model:
    """A classifier of images ``[batch, 3, size, size]``."""
    return _of_images(ImageClassifier(network).eval(), batch, size, deviations, shift)


def _of_images(
    module: nn.Module, batch: int, size: int, deviations: Mapping[str, float] | None = None, shift: float = 0.0
) -> Model:
    inputs = (torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1)),)
    dims = {"pixel_values": {0: "batch"}, "batch": (1, 32)}
    return Model(randomise(module, inputs, deviations, shift), inputs, dims)
