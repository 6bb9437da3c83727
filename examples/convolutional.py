"""A convolutional network with the deep l∞ encoder as its last layers, trained end to end.

python examples/convolutional.py                  # digits, seconds
python examples/convolutional.py CIFAR10_DIR      # 1,000 labelled images per class, minutes

Any `torch.nn.Module` that returns one vector per row can replace the backbone.
"""

import sys

import numpy as np
import torch
from torch import nn

from antipodal import ITQ, DeepLinf, LinfEncoder, Training, datasets, evaluate, load, register


class ConvolutionalEncoder(LinfEncoder):
    """Deep l∞ encoder of the features of a small convolutional network."""

    def __init__(self, shape, n_bits, n_stages, generator):
        super().__init__(64, n_bits, n_stages, generator=generator)
        layers = [nn.Unflatten(1, shape)]
        for inputs, outputs in ((shape[0], 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        self.backbone = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, y):
        """Encode each row of pixels."""
        return super().forward(self.backbone(y))


@register
class ConvolutionalHash(DeepLinf):
    """`DeepLinf` with a convolutional backbone."""

    shape = (3, 32, 32) if sys.argv[1:] else (1, 8, 8)

    def new_encoder(self, n_features, n_bits, n_stages, seed=0):
        """Return an encoder with random weights."""
        generator = torch.manual_seed(seed)
        return ConvolutionalEncoder(self.shape, n_bits, n_stages, generator)


data = datasets.cifar10(sys.argv[1]) if sys.argv[1:] else datasets.digits()
per_class, n_epochs = (1000, 30) if sys.argv[1:] else (100, 15)
images = data.images.reshape(len(data), *ConvolutionalHash.shape[1:], -1)
X = images.transpose(0, 3, 1, 2).reshape(len(data), -1).astype(np.float32)
split = data.split("paper", seed=0, n_train=per_class, n_query=20)
options = {"batch_size": 64, "learning_rate": 2e-3, "weight_decay": 0.1}
training = Training(n_epochs=n_epochs, dropout=0.0, **options)
hasher = ConvolutionalHash(32, feature_map="none", scaling="common", training=training)
hasher.fit(X[split.train], data.labels[split.train]).save("convolutional.antipodal")
itq = ITQ(32, random_state=0).fit(X[split.train])
for name, method in ("convolutional", load("convolutional.antipodal")), ("ITQ of pixels", itq):
    parts = split.query, split.database
    codes, labels = (method.encode(X[part]) for part in parts), (data.labels[p] for p in parts)
    score = evaluate(*codes, *labels, n_bits=32)
    print(f"{name}: mAP {score.map:.1f}, by chance {score.chance:.1f}")
