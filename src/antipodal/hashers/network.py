"""Hashers that are siamese networks: the same training for each, only the encoder differs."""

import copy
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
from torch import Tensor, nn

from antipodal.hashers.base import FloatArray, SupervisedHasher
from antipodal.hashers.kernel_features import Lift, learn_lift, lift_rows
from antipodal.hashers.pipeline import Network, forward_map
from antipodal.hashers.preprocessing import Inputs, Scaling, choose_scaling, learn_inputs, scaled
from antipodal.hashers.pseudo_labels import beliefs, can_teach, label_table, sharpened
from antipodal.hashers.rows import as_floats, draw_rows, hold_out, sample_labelled
from antipodal.hashers.training_options import check_nested, check_settings, find_device
from antipodal.io.vectors import VectorFile
from antipodal.paper.centres import (
    COSINE_MARGIN,
    CentrePairs,
    class_centres,
    cosine_loss,
    usual_scale,
)
from antipodal.paper.encoders import Encoder
from antipodal.paper.losses import PairLoss, function_name, triplet_loss
from antipodal.paper.pair_sampling import (
    BelievedPairs,
    InBatchPairs,
    ListedPairs,
    PairSource,
    sample_pairs,
)
from antipodal.paper.training import Progress, Training, train
from antipodal.threads import one_thread
from antipodal.validation import check_finite, check_pairs, check_type, check_whole

_PARTS = ("hidden_", "encoder_")  # of the network, in the order in which a row goes through


@dataclass(eq=False, repr=False)
class NetworkHasher(SupervisedHasher):
    """Base of the siamese hashers; see `DeepLinf` for what the parameters mean.

    An own network overrides two hooks: `new_encoder`, which returns an `antipodal.Encoder`, and
    `reach`; a third, `initial_encoder`, may start the training from elsewhere. The fields are the
    parameters: a subclass that adds some, or changes a default, is a dataclass as this one is, and
    adds those that `new_encoder` reads to `encoding_parameters`.
    """

    encoding_parameters: ClassVar[tuple[str, ...]] = ("n_bits", "nested", "n_stages", "tied")

    encoder_: Encoder = field(init=False)
    hidden_: Encoder = field(init=False)  # with front="hidden" only
    root_: bool = field(init=False)
    mean_: NDArray[np.float32] = field(init=False)
    scale_: NDArray[np.float32] = field(init=False)
    anchors_: NDArray[np.float32] = field(init=False)  # these four with front="kernel" only
    gamma_: float = field(init=False)
    lift_: NDArray[np.float32] = field(init=False)
    lift_offset_: NDArray[np.float32] = field(init=False)
    loss_curve_: NDArray[np.float64] = field(init=False)
    validation_curve_: NDArray[np.float64] = field(init=False)
    best_epoch_: int = field(init=False)
    full_bits_: int = field(init=False)  # of the whole network, in a prefix only

    n_bits: int = 64
    _: KW_ONLY
    nested: tuple[int, ...] = ()
    n_stages: int = 2
    tied: bool = False
    front: Literal["auto", "none", "hidden", "kernel"] = "auto"
    n_hidden: int = 256
    n_anchors: int = 2000
    scaling: Scaling = "auto"
    loss: Literal["contrastive", "triplet"] | PairLoss = "contrastive"
    margin: float | None = None
    similar_weight: float | None = None
    belief_power: float = 1.0
    centres: bool | None = None
    pairs: Literal["batch", "sampled"] = "batch"
    n_pairs: int = 100_000
    n_epochs: int | None = None
    batch_size: int | None = None
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 8e-3
    schedule: Literal["constant", "cosine"] = "cosine"
    weight_decay: float | None = None
    dropout: float | None = None
    validation_fraction: float = 0.0
    patience: int = 30
    n_samples: int = 100_000
    n_unlabelled: int = 20_000
    device: str = "auto"
    random_state: Any = None

    @property
    def uses_unlabelled(self) -> bool:  # type: ignore[override]
        """Whether `fit` learns from rows without labels, if it is given some."""
        return self.pairs == "batch" and self.n_unlabelled > 0

    @abstractmethod
    def new_encoder(self, n_features: int, n_bits: int, n_stages: int, seed: int = 0) -> Encoder:
        """Return an encoder with random weights, on the CPU."""

    def initial_encoder(self, Y: Tensor, seed: int) -> Encoder:
        """Return the encoder that training starts from, for rows Y as it is to see them."""
        return self.new_encoder(Y.shape[1], self.n_bits, self.n_stages, seed)

    @abstractmethod
    def reach(self) -> float:
        """Return half the distance between the two values of a bit, at the start of training."""

    @one_thread()
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        unlabelled: ArrayLike | None = None,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn from labels: rows are similar if they share one.

        Memory and the time of an epoch are bounded by `n_samples` and `n_unlabelled`, however many
        rows there are.

        Parameters
        ----------
        X : (m, n)
            Training rows.
        y : (m,) or (m, c)
            A class per row, or multi-hot concepts.
        unlabelled : (u, n), optional
            More rows, without labels, such as the database to be searched. A classifier that is
            fitted to the labelled rows says what they may be, and the network learns from that.
        progress : callable, optional
            Called with an `antipodal.paper.training.Epoch` after each epoch.
        checkpoint : path, optional
            File to keep the state of the training in, and to resume from if it exists.
        """
        others = self._check_unlabelled(unlabelled)
        checked = self.check_fit(X)
        labels = self.check_labels(y, len(checked))
        if others is not None and others.shape[1] != checked.shape[1]:
            raise ValueError(
                f"unlabelled must have the {checked.shape[1]} features of X: got {others.shape[1]}"
            )
        seed = self._seed()
        rng = np.random.default_rng(seed)
        rows, labels = sample_labelled(checked, labels, self.n_samples, rng)
        train_rows, held_out = hold_out(labels, self.validation_fraction, seed)
        if others is not None and not can_teach(labels[train_rows]):
            others = None
        inputs = self._learn_inputs(_some(rows, train_rows), labels[train_rows], others, seed)
        device = self._device()
        # The rows to learn from come first, then those held out.
        parts = [_some(rows, train_rows), *(() if others is None else (others,)), rows[held_out]]
        Y = np.concatenate([scaled(part, inputs) for part in parts])
        n_learned = len(Y) - len(held_out)
        pairs: PairSource
        if others is None:
            pairs = self._label_pairs(labels[train_rows], self.n_pairs, seed)
        else:
            n = len(train_rows)
            random = np.random.RandomState(seed)
            p = beliefs(Y[:n], labels[train_rows], Y[n:n_learned], random)
            p = sharpened(p, self.belief_power, exclusive=labels.ndim == 1)
            told = torch.from_numpy(p).to(device)
            pairs = self._believed_pairs(told, seed, exclusive=labels.ndim == 1)
        seen = self._learn_front(Y, n_learned, seed, believed=others is not None)
        validation = None
        if len(held_out):
            n_held_out_pairs = max(2, round(self.n_pairs * self.validation_fraction))
            held_out_pairs = self._label_pairs(labels[held_out], n_held_out_pairs, seed)
            validation = (seen[n_learned:].to(device), held_out_pairs)
        self._train(seen[:n_learned], pairs, validation, seed, progress, checkpoint)
        return self

    def _label_pairs(self, labels: NDArray[Any], n_pairs: int, seed: int) -> PairSource:
        device = self._device()
        tensor = torch.from_numpy(labels).to(device)
        if self.pairs == "batch":
            return InBatchPairs(tensor)
        return sample_pairs(tensor, n_pairs, torch.Generator(device=device).manual_seed(seed))

    def _believed_pairs(self, beliefs: Tensor, seed: int, *, exclusive: bool) -> PairSource:
        pairs = BelievedPairs(beliefs, exclusive=exclusive)
        wanted = self.centres
        if wanted is None:
            wanted = self.loss == "contrastive" and not self.nested and pairs.are_few()
        if not wanted:
            return pairs
        n_classes = beliefs.shape[1]
        centres = class_centres(n_classes, self.n_bits, np.random.default_rng(seed))
        loss = partial(
            cosine_loss, centres=torch.from_numpy(centres).to(beliefs),
            scale=usual_scale(n_classes), margin=COSINE_MARGIN,
        )  # fmt: skip
        return CentrePairs(pairs, beliefs, loss, beside=True)

    def _check_unlabelled(self, unlabelled: ArrayLike | None) -> FloatArray | None:
        """Return up to `n_unlabelled` of the rows, as floats; a file is read and not unpacked."""
        if unlabelled is None:
            return None
        check_whole(self.n_unlabelled, "n_unlabelled", 0)
        if not self.uses_unlabelled:
            raise ValueError(
                f"pairs={self.pairs!r} and n_unlabelled={self.n_unlabelled} leave no use for "
                "unlabelled rows: leave them out"
            )
        array = unlabelled if isinstance(unlabelled, VectorFile) else np.asarray(unlabelled)
        if array.ndim != 2 or not len(array) or array.dtype.kind not in "fiub":
            raise ValueError(
                "unlabelled must be a table of numbers, a row per item: got "
                f"{array.dtype} of shape {array.shape}"
            )
        chosen = draw_rows(len(array), self.n_unlabelled, np.random.default_rng(self._seed()))
        drawn = as_floats(array.take(chosen) if isinstance(array, VectorFile) else array[chosen])
        check_finite(drawn, "unlabelled", chosen)
        return drawn

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
        their number. Rows without labels cannot take part as in `fit`: pairs name no classes that
        a classifier could tell apart.
        """
        if self.loss == "triplet":
            raise ValueError("fit_pairs has pairs to learn from and no triplets: change the loss")
        checked = self.check_fit(X)
        listed, flags = check_pairs(pairs, similar, len(checked))
        if len(checked) > self.n_samples:
            named, listed = np.unique(listed, return_inverse=True)
            checked, listed = checked[named], listed.reshape(-1, 2)
        rows = as_floats(checked)
        seed = self._seed()
        device = self._device()
        train_pairs, held_out = hold_out(flags, self.validation_fraction, seed)

        def source(chosen: NDArray[np.int64]) -> ListedPairs:
            return ListedPairs(
                torch.from_numpy(listed[chosen]).to(device),
                torch.from_numpy(flags[chosen]).to(device),
            )

        inputs = self._learn_inputs(rows, None, None, seed)
        seen = self._learn_front(scaled(rows, inputs), len(rows), seed, believed=False)
        validation = (seen.to(device), source(held_out)) if len(held_out) else None
        self._train(seen, source(train_pairs), validation, seed, progress, checkpoint)
        return self

    def _learn_inputs(
        self,
        rows: FloatArray,
        labels: NDArray[Any] | None,
        others: FloatArray | None,
        seed: int,
    ) -> Inputs:
        """Choose and learn how features are scaled: the choice from labels, the rest from all."""
        scaling = self.scaling
        if scaling == "auto":
            scaling = "each"
            if labels is not None:
                random = np.random.RandomState(seed)
                scaling = choose_scaling(rows, label_table(labels), random)
        inputs = learn_inputs(rows if others is None else np.concatenate([rows, others]), scaling)
        self.root_, self.mean_, self.scale_ = inputs
        return inputs

    def _learn_front(
        self, Y: NDArray[np.float32], n_learned: int, seed: int, *, believed: bool
    ) -> Tensor:
        """Prepare what stands before the encoder, for scaled rows; return what that sees of them.

        The kernel is learned from the first n_learned rows. A hidden layer is trained with the
        encoder, so the rows stay as they are.
        """
        front = self.front
        if front == "auto":
            front = "hidden" if believed else "kernel"
        if front == "kernel":
            learned = learn_lift(Y[:n_learned], self.n_anchors, seed)
            self.anchors_, self.gamma_, self.lift_, self.lift_offset_ = learned
            return lift_rows(learned, torch.from_numpy(Y))
        if front == "hidden":
            self.hidden_ = self.new_encoder(Y.shape[1], self.n_hidden, 0, seed + 1)
            self.hidden_.add_offset()
        return torch.from_numpy(Y)

    def _train(
        self,
        Y: Tensor,
        pairs: PairSource,
        validation: tuple[Tensor, PairSource] | None,
        seed: int,
        progress: Progress | None,
        checkpoint: str | os.PathLike[str] | None,
    ) -> None:
        device = self._device()
        hidden = vars(self).get("hidden_")
        with torch.no_grad():
            encoder = self.initial_encoder(Y if hidden is None else hidden(Y), seed)
        network = (encoder if hidden is None else nn.Sequential(hidden, encoder)).to(device)
        usual = pairs.usual()
        settings = Training(
            n_epochs=self.n_epochs or usual.n_epochs,
            batch_size=self.batch_size or usual.batch_size,
            loss=function_name(self.loss) if callable(self.loss) else self.loss,
            margin=self._margin(),
            similar_weight=self.similar_weight or usual.similar_weight,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            weight_decay=usual.weight_decay if self.weight_decay is None else self.weight_decay,
            dropout=usual.dropout if self.dropout is None else self.dropout,
            patience=self.patience,
            seed=seed,
            nested=tuple(map(int, self.nested)),
        )
        history = train(
            network, Y.to(device), pairs, settings,
            loss=self._own_loss(),
            validation=validation, progress=progress, checkpoint=checkpoint,
        )  # fmt: skip
        network.cpu().requires_grad_(False)
        self.encoder_ = encoder
        self.loss_curve_ = np.array(history.loss)
        self.validation_curve_ = np.array(history.validation_loss)
        self.best_epoch_ = history.best_epoch

    def prefix(self, n_bits: int) -> Self:
        """Return a fitted hasher of the first n_bits bits alone, for a length that is in `nested`.

        It encodes, saves and loads like any other, and its bits are exactly the first of this one.
        Every stage mixes all bits, so it keeps the whole network: its codes are shorter, and the
        file and the time to encode are not.
        """
        self._check_fitted()
        check_whole(n_bits, "n_bits", 1)
        if n_bits not in self.nested:
            allowed = ", ".join(map(str, self.nested)) or "none"
            raise ValueError(
                f"a prefix must have a length that nested had in fit ({allowed}): got {n_bits}"
            )
        short = copy.copy(self)
        short.full_bits_ = len(self.encoder_.W)
        if self.margin is not None:
            short.margin = self.margin * math.sqrt(n_bits / self.n_bits)
        short.n_bits, short.nested = int(n_bits), tuple(n for n in self.nested if n < n_bits)
        short._remember_parameters()
        return short

    def projector(self, max_rows: int) -> Callable[[Tensor], Tensor]:
        """Return the map to the values whose signs are the bits."""
        forward = forward_map(self._network(), max_rows)
        if "full_bits_" not in vars(self):
            return forward
        return lambda X: forward(X)[:, : self.n_bits]

    def _network(self) -> Network:
        lift = None
        if "anchors_" in vars(self):
            lift = Lift(self.anchors_, self.gamma_, self.lift_, self.lift_offset_)
        inputs = Inputs(self.root_, self.mean_, self.scale_)
        return Network(inputs, vars(self).get("hidden_"), lift, self.encoder_)

    def _own_loss(self) -> PairLoss | None:
        """Return what to minimise in place of Eq. 12, if anything."""
        if self.loss == "triplet":
            return partial(triplet_loss, margin=self._margin())
        return self.loss if callable(self.loss) else None

    def _margin(self) -> float:
        """Return the margin given, or a distance that two random codes have: √(2N)·reach."""
        if self.margin is not None:
            return self.margin
        return 0.95 * math.sqrt(2 * self.n_bits) * self.reach()

    def _seed(self) -> int:
        self._check_parameters()
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _device(self) -> torch.device:
        return find_device(self.device)

    def _check_parameters(self) -> None:
        """Refuse settings that cannot work, before any time is spent."""
        for parameter in fields(self):
            if parameter.init:
                check_type(getattr(self, parameter.name), parameter.name, parameter.type)
        check_settings(self.get_params(deep=False))

    def fitted_state(self) -> dict[str, Any]:
        """Return what was learned, the weights of the network by name."""
        fitted = super().fitted_state()
        for part in _PARTS:
            if part in fitted:
                weights = fitted.pop(part).state_dict()
                fitted |= {f"{part}.{k}": v.numpy() for k, v in weights.items()}
        return fitted

    def restore_state(self, fitted: Mapping[str, Any]) -> None:
        """Take back what `fitted_state` gave; files of versions before 0.3 know no roots."""
        weights: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
        others = {"root_": False}
        for name, value in fitted.items():
            part, dot, weight = name.partition(".")
            if dot and part in weights:
                weights[part][weight] = torch.from_numpy(value)
            else:
                others[name] = value
        super().restore_state(others)
        made, n_features = weights["encoder_"]["W"].shape
        expected = vars(self).get("full_bits_", self.n_bits)
        if made != expected:  # before anything of that size is made
            raise ValueError(f"its encoder makes codes of {made} bits, not {expected}")
        check_nested(self.nested, self.n_bits)
        self.encoder_ = self.new_encoder(n_features, made, self.n_stages)
        if weights["hidden_"]:
            n_hidden, n_features = weights["hidden_"]["W"].shape
            self.hidden_ = self.new_encoder(n_features, n_hidden, 0)
            self.hidden_.add_offset()
        for part, values in weights.items():
            if values:
                getattr(self, part).load_state_dict(values)
                getattr(self, part).eval().requires_grad_(False)

    @classmethod
    def read_parameters(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a saved model as this version has them."""
        parameters = dict(saved)
        if "standardize" in parameters:  # before 0.3
            parameters["scaling"] = "each" if parameters.pop("standardize") else "none"
            parameters["front"] = "none" if parameters.pop("kernel", "") == "linear" else "kernel"
        if "nested" in parameters:  # JSON knows lists alone
            parameters["nested"] = tuple(parameters["nested"])
        return parameters


def _some(rows: NDArray[Any], chosen: NDArray[np.int64]) -> NDArray[Any]:
    """Return the rows chosen, in order; without a copy where they are all."""
    return rows if len(chosen) == len(rows) else rows[chosen]
