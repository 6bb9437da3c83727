"""A convolutional network with the deep l∞ encoder as its last layers, trained end to end.

python benchmarks/convolutional.py                                # digits, seconds
python benchmarks/convolutional.py --data CIFAR10_DIR --seeds 3 \
    --out benchmarks/results/convolutional.jsonl

The codes are compared with those of the same backbone with one tanh layer, and with ITQ of the
features that the backbone of the l∞ network computes. All are saved, loaded and encoded like any
other hasher. Recorded seeds are not run again.
"""

import argparse
import tempfile
import time
from pathlib import Path

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
from antipodal.bench.records import appending, read_records

N_BITS, N_CHANNELS = 64, 64


def backbone(shape: tuple[int, int, int]) -> nn.Sequential:
    """Return a small convolutional network from pixels to one vector per image."""
    layers: list[nn.Module] = [nn.Unflatten(1, shape)]
    for inputs, outputs in ((shape[0], 16), (16, 32), (32, N_CHANNELS)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class LinfHead(LinfEncoder):
    """Backbone, then the deep l∞ encoder."""

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """Encode each row of pixels."""
        return super().forward(self.backbone(y))


class TanhHead(PlainEncoder):
    """Backbone, then one tanh layer."""

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """Encode each row of pixels."""
        return super().forward(self.backbone(y))


@register
class ConvolutionalLinf(DeepLinf):
    """`DeepLinf` with a convolutional backbone."""

    head = LinfHead
    shape = (3, 32, 32)  # of an image

    def new_encoder(self, n_features, n_bits, n_stages, seed=0):
        """Return an encoder with random weights."""
        generator = torch.manual_seed(seed)
        encoder = self.head(N_CHANNELS, n_bits, n_stages, generator=generator)
        encoder.backbone = backbone(ConvolutionalLinf.shape)
        return encoder


@register
class ConvolutionalTanh(NNHash):
    """`NNHash` with a convolutional backbone."""

    head = TanhHead
    new_encoder = ConvolutionalLinf.new_encoder


@torch.no_grad()
def features(hasher: DeepLinf, rows: np.ndarray) -> np.ndarray:
    """Return the output of the trained backbone, in blocks."""
    network = hasher.encoder_.backbone
    return np.concatenate([network(part).numpy() for part in torch.tensor(rows).split(1000)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="CIFAR-10 directory; digits without it")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--out", type=Path, help="file of records to append to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = datasets.cifar10(options.data) if options.data else datasets.digits()
    per_class, n_query, n_epochs = (500, 100, 20) if options.data else (100, 20, 10)
    training = Training(
        n_epochs=options.epochs or n_epochs,
        batch_size=64,
        learning_rate=2e-3,
        weight_decay=0.1,
        dropout=0.0,
    )
    images = data.images if data.images.ndim == 4 else data.images[..., None]
    images = images.transpose(0, 3, 1, 2)
    ConvolutionalLinf.shape = images.shape[1:]
    X = images.reshape(len(data), -1).astype(np.float32)
    X = (X - X.mean()) / X.std()
    done = {record["seed"] for record in read_records(options.out)} if options.out else set()
    for seed in set(range(options.seeds)) - done:
        split = data.split("paper", seed=seed, n_train=per_class, n_query=n_query)
        train, parts = split.train, (split.query, split.database)
        records = []

        def score(method, encode, seconds, seed=seed, parts=parts, records=records):
            began = time.process_time()
            codes = [encode(X[part]) for part in parts]
            encoding = time.process_time() - began
            labels = (data.labels[part] for part in parts)
            scores = evaluate(*codes, *labels, n_bits=N_BITS).to_dict()
            kept = {k: round(scores[k], 3) for k in ("map", "precision_r2", "recall_r2", "chance")}
            record = {"dataset": data.name, "per_class": per_class, "bits": N_BITS}
            record |= {"epochs": training.n_epochs, "method": method, "seed": seed, **kept}
            record |= {"fit_seconds": round(seconds, 1), "encode_seconds": round(encoding, 1)}
            records.append(record)
            print(f"{method}: mAP {kept['map']:.1f}, by chance {kept['chance']:.1f}", flush=True)

        settings = {"feature_map": "none", "scaling": "none", "training": training}
        for name, hasher in (
            ("tanh head", ConvolutionalTanh(N_BITS, n_stages=0, random_state=seed, **settings)),
            ("l∞ head", ConvolutionalLinf(N_BITS, random_state=seed, **settings)),
        ):
            began = time.process_time()
            hasher.fit(X[train], data.labels[train])
            seconds = time.process_time() - began
            with tempfile.TemporaryDirectory() as folder:
                hasher.save(Path(folder) / "network.antipodal")
                score(name, load(Path(folder) / "network.antipodal").encode, seconds)
        began = time.process_time()
        itq = ITQ(N_BITS, random_state=seed).fit(features(hasher, X[train]))
        seconds += time.process_time() - began
        score("ITQ of its features", lambda X, h=hasher, i=itq: i.encode(features(h, X)), seconds)
        if options.out:
            with appending(options.out) as file:
                for record in records:
                    file.append(record)


if __name__ == "__main__":
    main()
