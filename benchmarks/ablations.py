"""Ablations on CIFAR-10 GIST by the paper's protocol, one change at a time.

python benchmarks/ablations.py --data DIR                  # records: results/ablations.jsonl
python benchmarks/ablations.py --data DIR --regime paper   # records: results/paper-regime.jsonl
python benchmarks/ablations.py --data DIR --regime lookup  # records: results/lookup-frontier.jsonl

The first changes the default `DeepLinf`, the second `DeepLinf.reproduced`: the paper's network on
the features, from labels alone. The third is a grid of weights of similar pairs, margins and noise
for the same network; `--regime lookup-front` measures its Pareto-optimal settings on more splits.
Recorded cells are not run again. Settings were not chosen by these results but on images that are
not queries.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from antipodal.baselines.nnhash import NNHash
from antipodal.baselines.sparsehash import SparseHash
from antipodal.bench.records import appending
from antipodal.bench.runner import Benchmark, grid, load_dataset, run_cells
from antipodal.bench.workers import available_cores
from antipodal.cli.app import bar
from antipodal.hashers.deeplinf import DeepLinf
from antipodal.hashers.registry import register
from antipodal.paper.admm import admm_step
from antipodal.paper.dictionary import ksvd
from antipodal.paper.encoders import LinfEncoder, PlainEncoder, SparseBitEncoder
from antipodal.paper.neurons import BLU, HELU, SHeLU
from antipodal.paper.solver import solve_linf

RESULTS = Path(__file__).parent / "results"

UNIT_NEURONS = {
    "BLU": BLU.unit,
    "tanh": torch.tanh,
    "SHeLU": SHeLU.unit,
    "HELU": HELU.unit,
    "ReLU": torch.relu,
}


class AnyNeuronEncoder(LinfEncoder):
    """Deep l∞ encoder with another neuron between the two learned scalings: θ·f₁(u/θ)."""

    unit_neuron = staticmethod(UNIT_NEURONS["BLU"])

    def neuron(self, u: Tensor) -> Tensor:
        """Scale, apply the chosen neuron, scale back."""
        return self.threshold * self.unit_neuron(u / self.threshold)


class TiedEncoder(LinfEncoder):
    """Deep l∞ encoder whose stages share S and b."""

    def forward(self, y: Tensor) -> Tensor:
        """Encode each row of y with the first S and b in every stage."""
        drive = y @ self.W.T
        drive = drive if self.c is None else drive + self.c
        z = self.neuron(drive)
        for _ in range(self.n_stages):
            z = admm_step(drive, z, self.S[0], self.b[0], self.neuron)[0]
        return z


# At module level, because worker processes import this file.
@register
@dataclass(kw_only=True, eq=False, repr=False)
class Ablated(DeepLinf):
    """`DeepLinf` with another neuron, fixed bounds, shared stages or a regression first.

    With `regression` the encoder is first trained to reproduce the solutions of Eq. 1 on the
    training rows, as LISTA is, and then as usual.
    """

    neuron: Literal["BLU", "tanh", "SHeLU", "HELU", "ReLU"] = "BLU"
    learn_bound: bool = True
    tied: bool = False
    regression: bool = False

    def new_encoder(
        self, n_features: int, n_bits: int, n_stages: int, seed: int = 0
    ) -> LinfEncoder:
        """Return an encoder with random weights."""
        kind = TiedEncoder if self.tied else AnyNeuronEncoder
        encoder = kind(
            n_features, n_bits, n_stages, bound=self.bound,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        if isinstance(encoder, AnyNeuronEncoder):
            encoder.unit_neuron = UNIT_NEURONS[self.neuron]
        encoder.blu.log_threshold.requires_grad_(self.learn_bound)
        return encoder

    def initial_encoder(self, Y: Tensor, seed: int) -> LinfEncoder:
        """Return the initial encoder, after the regression if there is one."""
        encoder = super().initial_encoder(Y, seed)
        if self.regression:
            sparsity = min(self._options.sparsity, self.n_bits)
            D = ksvd(Y, self.n_bits, sparsity=sparsity, random_state=seed).dictionary
            regress(encoder, Y, solve_linf(Y, D, self.bound).codes, seed)
        return encoder


@torch.enable_grad()
def regress(encoder: LinfEncoder, Y: Tensor, targets: Tensor, seed: int) -> None:
    """Train an encoder to map the rows Y to targets in 2,000 steps of 256 rows."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    for _ in range(2000):
        rows = torch.randint(len(Y), (256,), generator=generator)
        loss = (encoder(Y[rows]) - targets[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@register
class UnbiasedNNHash(NNHash):
    """`NNHash` without biases, as in the paper."""

    def new_encoder(
        self, n_features: int, n_bits: int, n_stages: int, seed: int = 0
    ) -> PlainEncoder:
        """Return an encoder whose biases stay zero."""
        encoder = super().new_encoder(n_features, n_bits, n_stages, seed)
        encoder.b.requires_grad_(False)
        return encoder


@register
class UnbiasedSparseHash(SparseHash):
    """`SparseHash` without biases, as in the paper."""

    def new_encoder(
        self, n_features: int, n_bits: int, n_stages: int, seed: int = 0
    ) -> SparseBitEncoder:
        """Return an encoder whose biases stay zero."""
        encoder = super().new_encoder(n_features, n_bits, n_stages, seed)
        encoder.b.requires_grad_(False)
        return encoder


DEFAULT_REGIME = [
    "DeepLinf",
    "Ablated:neuron=tanh",
    *(f"Ablated:neuron={name}" for name in ("SHeLU", "HELU", "ReLU")),
    *(f"DeepLinf:n_stages={k}" for k in (0, 1, 3, 4)),
    "DeepLinf:init=ksvd",
    # The regression alone: one epoch at a rate that changes nothing.
    "Ablated:n_epochs=1:learning_rate=1e-9:init=ksvd:regression=true",
    "Ablated:init=ksvd:regression=true",
    "Ablated:learn_bound=false",
    "DeepLinf:margin=5",
    "DeepLinf:similar_weight=1",
    "DeepLinf:feature_map=none",
    "DeepLinf:feature_map=kernel",
    "DeepLinf:n_hidden=1024",
    "DeepLinf:n_unlabelled=0",
    "DeepLinf:n_unlabelled=0:feature_map=hidden",
    "DeepLinf:centres=true",
    "DeepLinf:loss=triplet",
    "DeepLinf:loss=triplet:margin=5",
    "DeepLinf:scaling=each",
    "DeepLinf:dropout=0",
    "DeepLinf.paper",
]


# A quarter of the epochs of the preset, also for the reference.
QUICK = "DeepLinf.reproduced:n_epochs=250"
ABLATED = "Ablated.reproduced:n_epochs=250"
PAPER_REGIME = [
    QUICK,
    "NNHash.reproduced:n_epochs=250",
    f"{QUICK}:n_stages=0",
    "SparseHash.reproduced:n_epochs=250",
    *(f"{QUICK}:n_stages={k}" for k in (1, 3, 4)),
    *(f"{ABLATED}:neuron={name}" for name in ("tanh", "SHeLU", "HELU", "ReLU")),
    f"{QUICK}:init=ksvd",
    f"{QUICK}:margin=5",
    f"{QUICK}:margin=5:init=ksvd",
    f"{ABLATED}:tied=true",
    f"{ABLATED}:learn_bound=false",
    "UnbiasedNNHash.reproduced:n_epochs=250",
    "UnbiasedSparseHash.reproduced:n_epochs=250",
    "SparseHash.reproduced:n_epochs=250:nonnegative=true",
    # The regression alone, as above.
    "Ablated.reproduced:n_epochs=1:learning_rate=1e-9:init=ksvd:regression=true",
    f"{ABLATED}:init=ksvd:regression=true",
    f"{QUICK}:noise=0",
    f"{QUICK}:weight_decay=0",
    *(f"{QUICK}:similar_weight={w}" for w in (0.5, 1, 2)),
]

# Half of the epochs of the preset. The last margin is the default, 0.95·√(2N).
LOOKUP_GRID = [
    f"DeepLinf.reproduced:n_epochs=500:similar_weight={weight}:margin={margin}:noise={noise}"
    for noise in (1, 0.7)
    for margin in (5, 10.75, 3, 8)
    for weight in (0.2, 0.4, 0.8)
]
# All epochs of the preset, near the paper's scores.
LOOKUP_GRID += [
    f"DeepLinf.reproduced:similar_weight={weight}:margin={margin}:noise={noise}"
    for weight, margin, noise in ((0.2, 3, 0.85), (0.1, 3, 0.7), (0.1, 2, 0.7), (0.1, 2, 0.85))
]
# The settings of the grid that are Pareto-optimal in mAP and recall, on one split or on three.
LOOKUP_FRONT = [
    f"DeepLinf.reproduced{epochs}:similar_weight={weight}:margin={margin}:noise={noise}"
    for epochs, weight, margin, noise in (
        (":n_epochs=500", 0.2, 3, 0.7),
        (":n_epochs=500", 0.2, 3, 1),
        (":n_epochs=500", 0.4, 3, 1),
        (":n_epochs=500", 0.2, 5, 0.7),
        ("", 0.2, 3, 0.85),
        (":n_epochs=500", 0.2, 8, 1),
        (":n_epochs=500", 0.2, 10.75, 1),
        (":n_epochs=500", 0.4, 3, 0.7),
        (":n_epochs=500", 0.2, 10.75, 0.7),
        ("", 0.1, 3, 0.7),
        (":n_epochs=500", 0.4, 5, 0.7),
        (":n_epochs=500", 0.2, 8, 0.7),
        *((":n_epochs=500", 0.8, margin, 0.7) for margin in (5, 3, 8)),
    )
]

REGIMES = {
    "default": ("ablations", DEFAULT_REGIME),
    "paper": ("paper-regime", PAPER_REGIME),
    "lookup": ("lookup-frontier", LOOKUP_GRID),
    "lookup-front": ("lookup-frontier", LOOKUP_FRONT),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10 directory")
    parser.add_argument("--seeds", type=int, default=3, help="number of splits")
    parser.add_argument("--first-seed", type=int, default=0, help="first of these splits")
    parser.add_argument("--regime", choices=REGIMES, default="default")
    parser.add_argument("--processes", type=int, default=available_cores())
    parser.add_argument("--methods", nargs="*", help="instead of those of the regime")
    options = parser.parse_args()
    name, methods = REGIMES[options.regime]
    benchmark = Benchmark(load_dataset("cifar10", options.data))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    cells = grid(options.methods or methods, [64], seeds)
    with appending(RESULTS / f"{name}.jsonl") as file, bar("ablations") as show:
        done = benchmark.matching(cells, file.found)
        waiting = [cell for cell in cells if cell not in done]
        outcomes = run_cells(benchmark, waiting, options.processes)
        for count, (cell, outcome) in enumerate(outcomes, start=1):
            show(count, len(waiting), f", {cell.method}, seed {cell.seed}")
            if isinstance(outcome, Exception):
                raise outcome
            file.append(outcome)


if __name__ == "__main__":
    main()
