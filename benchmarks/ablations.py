"""Ablations of `DeepLinf` on CIFAR-10 GIST, one change at a time, by the paper's protocol.

python benchmarks/ablations.py --data DIR        # records: benchmarks/results/ablations.jsonl

Recorded cells are not run again. The defaults were not chosen by these results but on images that
are not queries.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from antipodal.bench.records import appending
from antipodal.bench.runner import Benchmark, grid, load_dataset, run_cells
from antipodal.bench.workers import available_cores
from antipodal.cli.app import bar
from antipodal.hashers.deeplinf import DeepLinf
from antipodal.hashers.registry import register
from antipodal.paper.encoders import LinfEncoder
from antipodal.paper.neurons import BLU, HELU, SHeLU

RECORDS = Path(__file__).parent / "results" / "ablations.jsonl"

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

    def unit(self, v: Tensor, out: Tensor | None = None) -> Tensor:
        """Apply the chosen neuron."""
        result = self.unit_neuron(v)
        return result if out is None else out.copy_(result)


# At module level, because worker processes import this file.
@register
@dataclass(kw_only=True, eq=False, repr=False)
class Ablated(DeepLinf):
    """`DeepLinf` with another neuron or with fixed bounds."""

    neuron: Literal["BLU", "tanh", "SHeLU", "HELU", "ReLU"] = "BLU"
    learn_bound: bool = True

    def new_encoder(
        self, n_features: int, n_bits: int, n_stages: int, seed: int = 0
    ) -> LinfEncoder:
        """Return an encoder with random weights."""
        encoder = AnyNeuronEncoder(
            n_features, n_bits, n_stages, bound=self.bound,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        encoder.unit_neuron = UNIT_NEURONS[self.neuron]
        encoder.blu.log_threshold.requires_grad_(self.learn_bound)
        return encoder


METHODS = [
    "DeepLinf",
    "Ablated:neuron=tanh",
    "Ablated:neuron=SHeLU",
    *(f"DeepLinf:n_stages={k}" for k in (0, 1, 3, 4)),
    "DeepLinf:init=ksvd",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10 directory")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    options = parser.parse_args()
    benchmark = Benchmark(load_dataset("cifar10", options.data))
    cells = grid(options.methods, [64], range(options.seeds))
    with appending(RECORDS) as file, bar("ablations") as show:
        done = benchmark.matching(cells, file.found)
        waiting = [cell for cell in cells if cell not in done]
        outcomes = run_cells(benchmark, waiting, available_cores())
        for count, (cell, outcome) in enumerate(outcomes, start=1):
            show(count, len(waiting), f", {cell.method}, seed {cell.seed}")
            if isinstance(outcome, Exception):
                raise outcome
            file.append(outcome)


if __name__ == "__main__":
    main()
