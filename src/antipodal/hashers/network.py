"""Hashers that are siamese networks: the same training for each, only the encoder differs."""

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from antipodal.checks import check_type, check_whole
from antipodal.encoders import Encoder
from antipodal.hashers.base import FloatArray, SupervisedHasher
from antipodal.hashers.parts.lift import Lift, kernel_map, learn_lift, lift_rows
from antipodal.hashers.parts.rows import (
    as_floats,
    feature_moments,
    feature_scale,
    sample_labelled,
    standardised,
)
from antipodal.pairs import (
    InBatchPairs,
    ListedPairs,
    PairLoss,
    check_pairs,
    function_name,
    sample_pairs,
)
from antipodal.siamese import Progress, Training, train
from antipodal.threads import one_thread

_FAR = 30.0  # deviations between zero and the mean of a feature


@dataclass(eq=False, repr=False)
class NetworkHasher(SupervisedHasher):
    """Base of the siamese hashers; see `DeepLinf` for what the parameters mean.

    An own network overrides two hooks: `new_encoder`, which returns an `antipodal.Encoder`, and
    `reach`; a third, `initial_encoder`, may start the training from elsewhere. The fields are the
    parameters: a subclass that adds some, or changes a default, is a dataclass as this one is, and
    adds those that `new_encoder` reads to `encoding_parameters`.
    """

    encoding_parameters: ClassVar[tuple[str, ...]] = ("n_bits", "kernel", "n_stages", "tied")

    encoder_: Encoder = field(init=False)
    mean_: NDArray[np.float32] = field(init=False)
    scale_: NDArray[np.float32] = field(init=False)
    anchors_: NDArray[np.float32] = field(init=False)  # these four with kernel="rbf" only
    gamma_: float = field(init=False)
    lift_: NDArray[np.float32] = field(init=False)
    lift_offset_: NDArray[np.float32] = field(init=False)
    loss_curve_: NDArray[np.float64] = field(init=False)
    validation_curve_: NDArray[np.float64] = field(init=False)
    best_epoch_: int = field(init=False)

    n_bits: int = 64
    _: KW_ONLY
    n_stages: int = 2
    tied: bool = False
    kernel: Literal["linear", "rbf"] = "rbf"
    n_anchors: int = 2000
    loss: Literal["contrastive"] | PairLoss = "contrastive"
    margin: float | None = None
    similar_weight: float = 0.1
    pairs: Literal["batch", "sampled"] = "batch"
    n_pairs: int = 100_000
    n_epochs: int = 200
    batch_size: int | None = None
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 8e-3
    schedule: Literal["constant", "cosine"] = "cosine"
    weight_decay: float = 2.0
    dropout: float = 0.2
    standardize: bool = True
    validation_fraction: float = 0.0
    patience: int = 30
    n_samples: int = 100_000
    device: str = "auto"
    random_state: Any = None

    @abstractmethod
    def new_encoder(self, n_features: int, seed: int = 0) -> Encoder:
        """Return an encoder with random weights, on the CPU."""

    def initial_encoder(self, Y: Tensor, seed: int) -> Encoder:
        """Return the encoder that training starts from, for standardised rows Y."""
        return self.new_encoder(Y.shape[1], seed)

    @abstractmethod
    def reach(self) -> float:
        """Return half the distance between the two values of a bit, at the start of training."""

    @one_thread()
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn from labels: rows are similar if they share one.

        Memory and the time of an epoch are bounded by `n_samples`, however many rows there are.

        Parameters
        ----------
        X : (m, n)
            Training rows.
        y : (m,) or (m, c)
            A class a row, or multi-hot concepts.
        progress : callable, optional
            Called with an `antipodal.siamese.Epoch` after each epoch.
        checkpoint : path, optional
            File to keep the state of the training in, and to resume from if it exists.
        """
        checked = self.check_fit(X)
        labels = self.check_labels(y, len(checked))
        seed = self._seed()
        rng = np.random.default_rng(seed)
        rows, labels = sample_labelled(checked, labels, self.n_samples, rng)
        train_rows, held_out = self._hold_out(labels, seed)
        device = self._device()

        def source(chosen: NDArray[np.int64], n_pairs: int) -> InBatchPairs | ListedPairs:
            tensor = torch.from_numpy(labels[chosen]).to(device)
            if self.pairs == "batch":
                return InBatchPairs(tensor)
            return sample_pairs(tensor, n_pairs, torch.Generator(device=device).manual_seed(seed))

        Y = self._inputs(rows, train_rows, seed)
        validation = None
        if len(held_out):
            n_held_out_pairs = max(2, round(self.n_pairs * self.validation_fraction))
            validation = (Y[held_out].to(device), source(held_out, n_held_out_pairs))
            Y = Y[train_rows]
        self._train(Y, source(train_rows, self.n_pairs), validation, seed, progress, checkpoint)
        return self

    @one_thread()
    def fit_pairs(
        self,
        X: ArrayLike,
        pairs: ArrayLike,
        similar: ArrayLike,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn from explicit pairs (P, 2) of rows of X, each similar (1) or not (0).

        With `validation_fraction` that share of the pairs is held out. If there are more rows than
        `n_samples`, only those that a pair names are learned from, all of them: memory grows with
        their number.
        """
        checked = self.check_fit(X)
        listed, flags = check_pairs(pairs, similar, len(checked))
        if len(checked) > self.n_samples:
            named, listed = np.unique(listed, return_inverse=True)
            checked, listed = checked[named], listed.reshape(-1, 2)
        rows = as_floats(checked)
        seed = self._seed()
        device = self._device()
        train_pairs, held_out = self._hold_out(flags, seed)

        def source(chosen: NDArray[np.int64]) -> ListedPairs:
            return ListedPairs(
                torch.from_numpy(listed[chosen]).to(device),
                torch.from_numpy(flags[chosen]).to(device),
            )

        Y = self._inputs(rows, np.arange(len(rows)), seed)
        validation = (Y.to(device), source(held_out)) if len(held_out) else None
        self._train(Y, source(train_pairs), validation, seed, progress, checkpoint)
        return self

    def _train(
        self,
        Y: Tensor,
        pairs: InBatchPairs | ListedPairs,
        validation: tuple[Tensor, InBatchPairs | ListedPairs] | None,
        seed: int,
        progress: Progress | None,
        checkpoint: str | os.PathLike[str] | None,
    ) -> None:
        device = self._device()
        encoder = self.initial_encoder(Y, seed).to(device)
        settings = Training(
            n_epochs=self.n_epochs,
            batch_size=self.batch_size or pairs.usual_batch_size(),
            loss=function_name(self.loss) if callable(self.loss) else self.loss,
            margin=self._margin(),
            similar_weight=self.similar_weight,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            weight_decay=self.weight_decay,
            dropout=self.dropout,
            patience=self.patience,
            seed=seed,
        )
        history = train(
            encoder, Y.to(device), pairs, settings,
            loss=self.loss if callable(self.loss) else None,
            validation=validation, progress=progress, checkpoint=checkpoint,
        )  # fmt: skip
        self.encoder_ = encoder.cpu().requires_grad_(False)
        self.loss_curve_ = np.array(history.loss)
        self.validation_curve_ = np.array(history.validation_loss)
        self.best_epoch_ = history.best_epoch

    def projector(self, max_rows: int) -> Callable[[Tensor], Tensor]:
        """Return the map to the values whose signs are the bits."""
        # The same layers in v = z/θ, where the scalings around the neuron merge into the weights
        # and one with threshold 1 is left: v⁰ = f₁(Wy/θ), vᵏ = f₁(Wy/θ + Θ⁻¹S_kΘvᵏ⁻¹ + b_k/θ),
        # Θ = diag(θ).
        encoder = self.encoder_
        if not encoder.is_plain_unfolding:
            return lambda X: encoder(self._encoder_inputs(X))
        theta = encoder.threshold
        first_layer = self._first_layer(encoder.W / theta[:, None], max_rows)
        stages = [(S * theta / theta[:, None], b / theta) for S, b in encoder.stages()]
        # Memory that is asked for anew for every block would cost more than the neurons.
        work = torch.empty(3, max_rows, self.n_bits)

        def project(X: Tensor) -> Tensor:
            drive, v, u = work[:, : len(X)].unbind()
            first_layer(X, drive)
            encoder.layers(drive, stages, partial(encoder.unit, out=v), out=u)
            return encoder.readout(v.mul_(theta))

        return project

    def _first_layer(self, W: Tensor, max_rows: int) -> Callable[[Tensor, Tensor], object]:
        """Return what writes Wy of rows (m, n) to a given tensor."""
        mean, scale = torch.from_numpy(self.mean_), torch.from_numpy(self.scale_)
        if self.kernel == "linear":
            # W(x - μ)/σ as one product: the scaling goes into the weight, μ into an offset.
            weight = W / scale
            if (mean.abs() > _FAR * scale).any():
                # Features far from zero would lose their digits in the product: shift them first.
                return lambda X, out: torch.mm(X - mean, weight.T, out=out)
            offset = -(weight @ mean)
            return lambda X, out: torch.addmm(offset, X, weight.T, out=out)
        lift = self._lift()
        kernels = kernel_map(lift, max_rows)
        weights = torch.from_numpy(lift.weight) @ W.T  # W(Lᵀk - c), again one product
        shift = -(W @ torch.from_numpy(lift.offset))
        return lambda X, out: torch.addmm(shift, kernels((X - mean) / scale), weights, out=out)

    def _encoder_inputs(self, X: Tensor) -> Tensor:
        """Return the rows as the encoder sees them: standardised and lifted."""
        Y = (X - torch.from_numpy(self.mean_)) / torch.from_numpy(self.scale_)
        return Y if self.kernel == "linear" else lift_rows(self._lift(), Y)

    def _lift(self) -> Lift:
        return Lift(self.anchors_, self.gamma_, self.lift_, self.lift_offset_)

    def _inputs(self, rows: FloatArray, fitted_on: NDArray[np.int64], seed: int) -> Tensor:
        """Learn from some rows how to standardise and lift; return what the encoder is to see."""
        Y = self._standardised(rows, fitted_on)
        if self.kernel == "linear":
            return Y
        learned = learn_lift(_some(Y.numpy(), fitted_on), self.n_anchors, seed)
        self.anchors_, self.gamma_, self.lift_, self.lift_offset_ = learned
        return lift_rows(learned, Y)

    def _margin(self) -> float:
        """Return the margin given, or a distance that two random codes have: √(2N)·reach."""
        if self.margin is not None:
            return self.margin
        return 0.95 * math.sqrt(2 * self.n_bits) * self.reach()

    def _standardised(self, rows: FloatArray, fitted_on: NDArray[np.int64]) -> Tensor:
        """Learn mean and scale on some rows; return all of them standardised, float32."""
        n_features = rows.shape[1]
        self.mean_ = np.zeros(n_features, np.float32)
        self.scale_ = np.ones(n_features, np.float32)
        if self.standardize:
            mean, deviation = feature_moments(_some(rows, fitted_on))
            self.mean_ = mean.astype(np.float32)
            self.scale_ = feature_scale(mean, deviation).astype(np.float32)
        return torch.from_numpy(standardised(rows, self.mean_, self.scale_))

    def _hold_out(
        self, groups: NDArray[Any], seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Split the entries into a training and a validation part, a share of each group."""
        n = len(groups)
        order = np.random.default_rng(seed).permutation(n)
        if groups.ndim == 1:  # deal the groups out evenly along the order
            order = order[np.argsort(groups[order], kind="stable")]
            rank = np.concatenate(
                [np.arange(c) / c for c in np.unique(groups, return_counts=True)[1]]
            )
            order = order[np.argsort(rank, kind="stable")]
        n_held_out = round(n * self.validation_fraction)
        return np.sort(order[n_held_out:]), np.sort(order[:n_held_out])

    def _seed(self) -> int:
        self._check_parameters()
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def _check_parameters(self) -> None:
        """Refuse settings that cannot work, before any time is spent."""
        for parameter in fields(self):
            if parameter.init:
                check_type(getattr(self, parameter.name), parameter.name, parameter.type)
        for name, least in (
            ("n_stages", 0),
            ("n_anchors", 1),
            ("n_pairs", 1),
            ("n_epochs", 1),
            ("patience", 0),
            ("batch_size", 2),
        ):
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), name, least)
        for name in ("learning_rate", "similar_weight"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite: got {getattr(self, name)}")
        if self.margin is not None and not 0 < self.margin < math.inf:
            raise ValueError(f"margin must be positive and finite, or None: got {self.margin}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1): got {self.dropout}")
        if not 0 <= self.validation_fraction <= 0.5:
            raise ValueError(
                f"validation_fraction must be in [0, 0.5]: got {self.validation_fraction}"
            )
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must not be negative: got {self.weight_decay}")
        for name, allowed in (
            ("optimizer", ("adamw", "sgd")),
            ("schedule", ("constant", "cosine")),
            ("pairs", ("batch", "sampled")),
            ("kernel", ("linear", "rbf")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}: got {getattr(self, name)!r}")
        try:
            torch.zeros(1, device=self._device()).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                "device must be 'auto', 'cpu', or another that PyTorch can use here: "
                f"got {self.device!r} ({reason})"
            ) from error
        if self.loss != "contrastive" and not callable(self.loss):
            raise ValueError(
                f"loss must be 'contrastive' or a function of (codes, targets): got "
                f"{self.loss!r}. A model that was loaded knows its own loss by name only"
            )

    def fitted_state(self) -> dict[str, Any]:
        """Return what was learned, the encoder's weights by name."""
        fitted = super().fitted_state()
        weights = fitted.pop("encoder_").state_dict()
        return {**fitted, **{f"encoder_.{k}": v.numpy() for k, v in weights.items()}}

    def restore_state(self, fitted: Mapping[str, Any]) -> None:
        """Take back what `fitted_state` gave."""
        prefix = "encoder_."
        weights = {k: torch.from_numpy(v) for k, v in fitted.items() if k.startswith(prefix)}
        super().restore_state({k: v for k, v in fitted.items() if k not in weights})
        made, n_features = weights[f"{prefix}W"].shape
        if made != self.n_bits:  # before anything of that size is made
            raise ValueError(f"its encoder makes codes of {made} bits, not {self.n_bits}")
        encoder = self.new_encoder(n_features)
        encoder.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items()})
        self.encoder_ = encoder.eval().requires_grad_(False)


def _some(rows: NDArray[Any], chosen: NDArray[np.int64]) -> NDArray[Any]:
    """Return the rows chosen, in order; without a copy where they are all."""
    return rows if len(chosen) == len(rows) else rows[chosen]
