"""A convolutional network with the deep l∞ encoder as its last layers, trained end to end.

python benchmarks/convolutional.py                # digits, seconds
python benchmarks/convolutional.py CIFAR10_DIR 3  # 500 images per class, 3 seeds, minutes

Any `torch.nn.Module` that returns one vector per row can replace the backbone. The codes are
compared with those of the same backbone with one tanh layer, and with ITQ of the features that the
trained backbone computes.
"""

import sys

import numpy as np
import torch
from torch import nn

from antipodal import (
    ITQ,
    DeepLinf,
    LinfEncoder,
    NNHash,
    PlainEncoder,
    Training,
    datasets,
    evaluate,
    load,
    register,
)

N_BITS, N_CHANNELS = 32, 64
SHAPE = (3, 32, 32) if sys.argv[1:] else (1, 8, 8)
PER_CLASS, N_EPOCHS = (500, 20) if sys.argv[1:] else (100, 10)


def backbone():
    """Return a small convolutional network from pixels to one vector per image."""
    layers = [nn.Unflatten(1, SHAPE)]
    for inputs, outputs in ((SHAPE[0], 16), (16, 32), (32, N_CHANNELS)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class LinfHead(LinfEncoder):
    """Backbone, then the deep l∞ encoder."""

    def forward(self, y):
        """Encode each row of pixels."""
        return super().forward(self.backbone(y))


class TanhHead(PlainEncoder):
    """Backbone, then one tanh layer."""

    def forward(self, y):
        """Encode each row of pixels."""
        return super().forward(self.backbone(y))


@register
class ConvolutionalLinf(DeepLinf):
    """`DeepLinf` with a convolutional backbone."""

    head = LinfHead

    def new_encoder(self, n_features, n_bits, n_stages, seed=0):
        """Return an encoder with random weights."""
        generator = torch.manual_seed(seed)
        encoder = self.head(N_CHANNELS, n_bits, n_stages, generator=generator)
        encoder.backbone = backbone()
        return encoder


@register
class ConvolutionalTanh(NNHash):
    """`NNHash` with a convolutional backbone."""

    head = TanhHead
    new_encoder = ConvolutionalLinf.new_encoder


data = datasets.cifar10(sys.argv[1]) if sys.argv[1:] else datasets.digits()
images = data.images.reshape(len(data), *SHAPE[1:], -1).transpose(0, 3, 1, 2)
X = images.reshape(len(data), -1).astype(np.float32)
X = (X - X.mean()) / X.std()
options = {"batch_size": 64, "learning_rate": 2e-3, "weight_decay": 0.1, "dropout": 0.0}
training = Training(n_epochs=N_EPOCHS, **options)
for seed in range(int(sys.argv[2]) if sys.argv[2:] else 1):
    split = data.split("paper", seed=seed, n_train=PER_CLASS, n_query=20)

    def score(name, encode, split=split):
        """Print the mAP of codes."""
        parts = split.query, split.database
        codes, labels = (encode(X[part]) for part in parts), (data.labels[p] for p in parts)
        found = evaluate(*codes, *labels, n_bits=N_BITS)
        print(f"{name}: mAP {found.map:.1f}, by chance {found.chance:.1f}")

    settings = {"feature_map": "none", "scaling": "none", "training": training}
    settings["random_state"] = seed
    for name, hasher in (
        ("tanh head", ConvolutionalTanh(N_BITS, n_stages=0, **settings)),
        ("l∞ head", ConvolutionalLinf(N_BITS, **settings)),
    ):
        hasher.fit(X[split.train], data.labels[split.train]).save("convolutional.antipodal")
        score(name, load("convolutional.antipodal").encode)

    @torch.no_grad()
    def features(rows, network=hasher.encoder_.backbone):
        """Return the output of the trained backbone, in blocks."""
        return np.concatenate([network(part).numpy() for part in torch.tensor(rows).split(1000)])

    itq = ITQ(N_BITS, random_state=seed).fit(features(X[split.train]))
    score("ITQ of its features", lambda rows, itq=itq, f=features: itq.encode(f(rows)))
