"""Base class of the siamese networks: preprocessing, feature map, training, prefixes, files."""

import copy
import inspect
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.errors import AntipodalError, missing_extra
from antipodal.hashers.base import FloatArray, SupervisedHasher, function_name
from antipodal.hashers.kernel_features import (
    KernelFeatures,
    kernel_feature_rows,
    kernel_steps,
    learn_kernel_features,
    reduced_set,
)
from antipodal.hashers.operations import (
    Affine,
    Elementwise,
    FirstColumns,
    Function,
    GaussianKernel,
    Operation,
    Standardise,
    Unfolding,
)
from antipodal.hashers.preprocessing import (
    Inputs,
    Scaling,
    as_floats,
    check_scaling,
    choose_scaling,
    draw_rows,
    hold_out,
    learn_inputs,
    linear_steps,
    sample_labelled,
    scaled,
)
from antipodal.hashers.pseudo_labels import enough_labels, label_table, pseudo_labels, sharpen
from antipodal.hashers.training import OPTIONS, REMOVED, RENAMED, Training
from antipodal.io.vectors import VectorFile
from antipodal.paper.pairs import sample_pairs
from antipodal.threads import one_thread
from antipodal.validation import (
    check_finite,
    check_nested,
    check_pairs,
    check_random_state,
    check_type,
    check_whole,
)

if TYPE_CHECKING:
    from torch import Tensor

    from antipodal.paper.encoders import Encoder
    from antipodal.paper.losses import PairLoss
    from antipodal.paper.pair_sampling import ListedPairs, PairSource
    from antipodal.paper.training import Progress

_FEATURE_MAPS = ("auto", "none", "hidden", "kernel")

Weights = dict[str, NDArray[np.float32]]
P = ParamSpec("P")
Result = TypeVar("Result")


def needs_torch(function: Callable[P, Result]) -> Callable[P, Result]:
    """Raise AntipodalError with the extra to install if PyTorch is missing at a call."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise AntipodalError(missing_extra("training", "torch", "train")) from error
        return function(*args, **kwargs)

    return call


class Layers(NamedTuple):
    """The layers of an encoder after its first product, for encoding without PyTorch.

    Attributes
    ----------
    neuron : Elementwise
        f₁, the neuron with threshold 1.
    threshold : (N,), optional
        θ: the neuron is θ·f₁(u/θ).
    feeds_input : bool
        Whether Wy is added in every layer.
    readout : Elementwise, optional
        Function of zᴷ/θ whose result is the output of the encoder, in place of zᴷ.
    """

    neuron: Elementwise
    threshold: NDArray[np.float32] | None = None
    feeds_input: bool = True
    readout: Elementwise | None = None

    def thresholds(self, n_units: int) -> NDArray[np.float32]:
        """Return θ (n_units,), ones for a neuron without thresholds."""
        return np.ones(n_units, np.float32) if self.threshold is None else self.threshold


@dataclass(eq=False, repr=False)
class NetworkHasher(SupervisedHasher):
    """Base class of the siamese networks; `DeepLinf` documents the parameters.

    A custom network overrides two methods: `new_encoder`, which returns an `antipodal.Encoder`,
    and `reach`. It may override `initial_encoder` to choose the initial weights, and `layers` to
    encode faster, without PyTorch, and to export to ONNX. The dataclass fields are the
    parameters: a subclass that adds a parameter or changes a default is also a dataclass. It adds
    the parameters that `new_encoder` reads to `encoding_parameters`.
    """

    encoding_parameters: ClassVar[tuple[str, ...]] = ("n_bits", "nested", "n_stages")

    weights_: Weights = field(init=False)  # of encoder and hidden layer, such as "encoder_.W"
    root_: bool = field(init=False)
    mean_: NDArray[np.float32] = field(init=False)
    scale_: NDArray[np.float32] = field(init=False)
    anchors_: NDArray[np.float32] = field(init=False)  # these four with feature_map="kernel" only
    gamma_: float = field(init=False)
    lift_: NDArray[np.float32] = field(init=False)
    lift_offset_: NDArray[np.float32] = field(init=False)
    loss_curve_: NDArray[np.float64] = field(init=False)
    validation_curve_: NDArray[np.float64] = field(init=False)
    best_epoch_: int = field(init=False)
    full_bits_: int = field(init=False)  # code length of the whole network, in a prefix only

    n_bits: int = 64
    _: KW_ONLY
    nested: tuple[int, ...] = ()
    n_stages: int = 2
    feature_map: Literal["auto", "none", "hidden", "kernel"] = "auto"
    n_hidden: int = 256
    scaling: Scaling = "auto"
    loss: Literal["contrastive", "triplet"] | Callable[..., Any] = "contrastive"
    training: Training | None = None
    random_state: Any = None

    @property
    def _options(self) -> Training:
        """Return the training options, the defaults if there are none."""
        if self.training is None:
            return Training()
        if not isinstance(self.training, Training):
            raise TypeError(f"training must be a Training object or None: got {self.training!r}")
        return self.training

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `training__NAME` sets a training option, even if `training` is None."""
        if self.training is None and any(name.startswith("training__") for name in params):
            params.setdefault("training", Training())
        super().set_params(**params)
        return self

    @property
    def uses_unlabelled(self) -> bool:  # type: ignore[override]
        """Whether `fit` learns from unlabelled rows if they are given."""
        return self._options.pairs == "batch" and self._options.n_unlabelled > 0

    @abstractmethod
    def new_encoder(self, n_features: int, n_bits: int, n_stages: int, seed: int = 0) -> "Encoder":
        """Return an encoder with random weights, on the CPU."""

    def initial_encoder(self, Y: "Tensor", seed: int) -> "Encoder":
        """Return the encoder with its initial weights, for the mapped training rows Y."""
        return self.new_encoder(Y.shape[1], self.n_bits, self.n_stages, seed)

    @abstractmethod
    def reach(self) -> float:
        """Return half the distance between the two values of a bit, before training."""

    def layers(self, weights: Weights) -> Layers | None:
        """Describe the layers of an encoder with these weights, or return None.

        Without a description the encoder is run with PyTorch.
        """
        return None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "new_encoder" in vars(cls) and "layers" not in vars(cls):
            cls.layers = NetworkHasher.layers  # type: ignore[method-assign]

    @needs_torch
    @one_thread()
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        unlabelled: ArrayLike | None = None,
        progress: "Progress | None" = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn from labels: rows are similar if they share a label.

        `n_samples` and `n_unlabelled` of `Training` bound the memory and the time of an epoch.

        Parameters
        ----------
        X : (m, n)
            Training rows.
        y : (m,) or (m, c)
            A class per row, or multi-hot concepts.
        unlabelled : (u, n), optional
            Further rows without labels, such as the database to be searched. The network learns
            from the class probabilities that a classifier, fitted to the labelled rows, assigns
            to them.
        progress : callable, optional
            Called with an `antipodal.paper.training.Epoch` after each epoch.
        checkpoint : path, optional
            File that stores the state of the training. If it exists, training resumes from it.
        """
        options = self._options
        others = self._check_unlabelled(unlabelled)
        checked = self.check_fit(X)
        labels = self.check_labels(y, len(checked))
        if others is not None and others.shape[1] != checked.shape[1]:
            raise ValueError(
                f"unlabelled must have the {checked.shape[1]} features of X: got {others.shape[1]}"
            )
        seed = self._seed()
        rng = np.random.default_rng(seed)
        rows, labels = sample_labelled(checked, labels, options.n_samples, rng)
        train_rows, held_out = hold_out(labels, options.validation_fraction, seed)
        if others is not None and not enough_labels(labels[train_rows]):
            others = None
        inputs = self._learn_inputs(_some(rows, train_rows), labels[train_rows], others, seed)
        # Training rows first, then the held-out rows.
        parts = [_some(rows, train_rows), *(() if others is None else (others,)), rows[held_out]]
        Y = np.concatenate([scaled(part, inputs) for part in parts])
        n_train = len(Y) - len(held_out)
        pairs: PairSource
        if others is None:
            pairs = self._label_pairs(labels[train_rows], options.n_pairs, seed)
        else:
            n = len(train_rows)
            random = np.random.RandomState(seed)
            p = pseudo_labels(Y[:n], labels[train_rows], Y[n:n_train], random)
            p = sharpen(p, options.pseudo_label_power, exclusive=labels.ndim == 1)
            pairs = self._expected_pairs(p, seed, exclusive=labels.ndim == 1)
        mapped, hidden = self._learn_feature_map(
            Y, n_train, seed, has_unlabelled=others is not None
        )
        validation = None
        if len(held_out):
            n_held_out_pairs = max(2, round(options.n_pairs * options.validation_fraction))
            held_out_pairs = self._label_pairs(labels[held_out], n_held_out_pairs, seed)
            validation = (mapped[n_train:], held_out_pairs)
        self._train(mapped[:n_train], hidden, pairs, validation, seed, progress, checkpoint)
        self._reduce_anchors(seed)
        return self

    def _label_pairs(self, labels: NDArray[Any], n_pairs: int, seed: int) -> "PairSource":
        if self._options.pairs == "batch":
            from antipodal.paper.pair_sampling import InBatchPairs

            return InBatchPairs(self._to_device(labels))
        drawn = sample_pairs(labels, n_pairs, np.random.default_rng(seed))
        return self._listed_pairs(drawn.rows, drawn.similar)

    def _listed_pairs(self, listed: NDArray[np.int64], similar: NDArray[np.bool_]) -> "ListedPairs":
        from antipodal.paper.pair_sampling import ListedPairs

        return ListedPairs(self._to_device(listed), self._to_device(similar))

    def _to_device(self, array: NDArray[Any]) -> "Tensor":
        """Return a tensor on the device to train on."""
        import torch

        return torch.from_numpy(array).to(self._options.torch_device())

    def _expected_pairs(
        self, p: NDArray[np.float32], seed: int, *, exclusive: bool
    ) -> "PairSource":
        from antipodal.paper import centres
        from antipodal.paper.pair_sampling import ExpectedPairs

        probabilities = self._to_device(p)
        pairs = ExpectedPairs(probabilities, exclusive=exclusive)
        add_centres = self._options.centres
        if add_centres is None:
            add_centres = self.loss == "contrastive" and not self.nested and pairs.are_few()
        if not add_centres:
            return pairs
        n_classes = probabilities.shape[1]
        codes = centres.class_centres(n_classes, self.n_bits, np.random.default_rng(seed))
        loss = partial(
            centres.cosine_loss, centres=self._to_device(codes).to(probabilities),
            scale=centres.default_scale(n_classes), margin=centres.COSINE_MARGIN,
        )  # fmt: skip
        return centres.CentrePairs(pairs, probabilities, loss, add_pair_loss=True)

    def _check_unlabelled(self, unlabelled: ArrayLike | None) -> FloatArray | None:
        """Return a sample of up to `n_unlabelled` rows as floats, without reading a whole file."""
        if unlabelled is None:
            return None
        options = self._options
        check_whole(options.n_unlabelled, "n_unlabelled", 0)
        if not self.uses_unlabelled:
            raise ValueError(
                f"unlabelled rows are not used with pairs={options.pairs!r} and "
                f"n_unlabelled={options.n_unlabelled}: omit them"
            )
        array = unlabelled if isinstance(unlabelled, VectorFile) else np.asarray(unlabelled)
        if array.ndim != 2 or not len(array) or array.dtype.kind not in "fiub":
            raise ValueError(
                "unlabelled must be a numeric table with one row per item: got "
                f"{array.dtype} of shape {array.shape}"
            )
        chosen = draw_rows(len(array), options.n_unlabelled, np.random.default_rng(self._seed()))
        drawn = as_floats(array.take(chosen) if isinstance(array, VectorFile) else array[chosen])
        check_finite(drawn, "unlabelled", chosen)
        return drawn

    @needs_torch
    @one_thread()
    def fit_pairs(
        self,
        X: ArrayLike,
        pairs: ArrayLike,
        similar: ArrayLike,
        *,
        progress: "Progress | None" = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn from explicit pairs (P, 2) of rows of X, each similar (1) or not (0).

        `validation_fraction` of `Training` is then a fraction of the pairs. If X has more than
        `n_samples` rows, all rows that occur in a pair are used and no others, so memory grows
        with their number. Unlabelled rows cannot be used, since pairs do not define classes for a
        classifier.
        """
        if self.loss == "triplet":
            raise ValueError(
                "fit_pairs cannot minimise loss='triplet': explicit pairs contain no triplets"
            )
        options = self._options
        checked = self.check_fit(X)
        listed, flags = check_pairs(pairs, similar, len(checked))
        if len(checked) > options.n_samples:
            named, listed = np.unique(listed, return_inverse=True)
            checked, listed = checked[named], listed.reshape(-1, 2)
        rows = as_floats(checked)
        seed = self._seed()
        train_pairs, held_out = hold_out(flags, options.validation_fraction, seed)

        def source(chosen: NDArray[np.int64]) -> "ListedPairs":
            return self._listed_pairs(listed[chosen], flags[chosen])

        inputs = self._learn_inputs(rows, None, None, seed)
        mapped, hidden = self._learn_feature_map(
            scaled(rows, inputs), len(rows), seed, has_unlabelled=False
        )
        validation = (mapped, source(held_out)) if len(held_out) else None
        self._train(mapped, hidden, source(train_pairs), validation, seed, progress, checkpoint)
        self._reduce_anchors(seed)
        return self

    def _learn_inputs(
        self,
        rows: FloatArray,
        labels: NDArray[Any] | None,
        others: FloatArray | None,
        seed: int,
    ) -> Inputs:
        """Choose the scaling by the labelled rows, and learn its parameters from all rows."""
        scaling = self.scaling
        if scaling == "auto":
            scaling = "each"
            if labels is not None:
                random = np.random.RandomState(seed)
                scaling = choose_scaling(rows, label_table(labels), random)
        inputs = learn_inputs(rows if others is None else np.concatenate([rows, others]), scaling)
        self.root_, self.mean_, self.scale_ = inputs
        return inputs

    def _learn_feature_map(
        self, Y: NDArray[np.float32], n_train: int, seed: int, *, has_unlabelled: bool
    ) -> tuple[NDArray[np.float32], "Encoder | None"]:
        """Prepare the feature map for scaled rows; return the input of the training.

        Kernel features are learned from the first n_train rows. A hidden layer is trained
        together with the encoder: it is returned with the unchanged rows.
        """
        feature_map = self.feature_map
        if feature_map == "auto":
            feature_map = "hidden" if has_unlabelled else "kernel"
        if feature_map == "kernel":
            learned = learn_kernel_features(Y[:n_train], self._options.n_anchors, seed)
            self.anchors_, self.gamma_, self.lift_, self.lift_offset_ = learned
            return kernel_feature_rows(learned, Y), None
        if feature_map == "none":
            return Y, None
        hidden = self.new_encoder(Y.shape[1], self.n_hidden, 0, seed + 1)
        hidden.add_offset()
        return Y, hidden

    def _train(
        self,
        Y: NDArray[np.float32],
        hidden: "Encoder | None",
        pairs: "PairSource",
        validation: "tuple[NDArray[np.float32], PairSource] | None",
        seed: int,
        progress: "Progress | None",
        checkpoint: str | os.PathLike[str] | None,
    ) -> None:
        import torch

        from antipodal.paper.training import TrainingRun, train

        options = self._options
        rows = torch.from_numpy(Y)
        with torch.no_grad():
            encoder = self.initial_encoder(rows if hidden is None else hidden(rows), seed)
        network = encoder if hidden is None else torch.nn.Sequential(hidden, encoder)
        network.to(options.torch_device())
        default = pairs.defaults()
        settings = TrainingRun(
            n_epochs=options.n_epochs or default.n_epochs,
            batch_size=options.batch_size or default.batch_size,
            loss=function_name(self.loss) if callable(self.loss) else self.loss,
            margin=self._margin(),
            similar_weight=options.similar_weight or default.similar_weight,
            optimizer=options.optimizer,
            learning_rate=options.learning_rate,
            schedule=options.schedule,
            weight_decay=(
                default.weight_decay if options.weight_decay is None else options.weight_decay
            ),
            dropout=default.dropout if options.dropout is None else options.dropout,
            noise=options.noise,
            patience=options.patience,
            seed=seed,
            nested=tuple(map(int, self.nested)),
        )
        history = train(
            network, self._to_device(Y), pairs, settings,
            loss=self._custom_loss(),
            validation=validation and (self._to_device(validation[0]), validation[1]),
            progress=progress, checkpoint=checkpoint,
        )  # fmt: skip
        network.cpu()
        self.weights_ = {
            f"{part}.{name}": value.detach().numpy()
            for part, module in (("hidden_", hidden), ("encoder_", encoder))
            if module is not None
            for name, value in module.state_dict().items()
        }
        self.loss_curve_ = np.array(history.loss)
        self.validation_curve_ = np.array(history.validation_loss)
        self.best_epoch_ = history.best_epoch

    def _reduce_anchors(self, seed: int) -> None:
        """Replace the anchors of the kernel features by fewer points, for faster encoding."""
        encoder = self._weights("encoder_")
        layers = self.layers(encoder)
        n_points = self._options.n_reduced
        if "anchors_" not in vars(self) or layers is None or not n_points:
            return
        theta = layers.thresholds(len(encoder["W"]))[:, None]
        learned = KernelFeatures(self.anchors_, self.gamma_, self.lift_, self.lift_offset_)
        reduced = reduced_set(learned, encoder["W"] / theta, n_points, seed)
        self.anchors_, self.gamma_, self.lift_, self.lift_offset_ = reduced

    def prefix(self, n_bits: int) -> Self:
        """Return a fitted hasher for the first n_bits bits, a length in `nested`.

        Its bits equal the first bits of this hasher. Every stage mixes all bits, so it contains
        the whole network: the codes are shorter, but the file size and encoding time are the same.
        """
        self._check_fitted()
        check_whole(n_bits, "n_bits", 1)
        if n_bits not in self.nested:
            allowed = ", ".join(map(str, self.nested)) or "none"
            raise ValueError(
                f"n_bits must be one of the lengths in nested ({allowed}): got {n_bits}"
            )
        short = copy.copy(self)
        short.full_bits_ = len(self.weights_["encoder_.W"])
        if self.training is not None:
            short.training = replace(self.training)
            if self.training.margin is not None:
                short.training.margin = self.training.margin * math.sqrt(n_bits / self.n_bits)
        short.n_bits, short.nested = int(n_bits), tuple(n for n in self.nested if n < n_bits)
        short._mark_fitted()
        return short

    def pipeline(self) -> list[Operation]:
        """Return the steps that compute the values whose signs are the bits."""
        steps = self._network_steps()
        return [*steps, FirstColumns(self.n_bits)] if "full_bits_" in vars(self) else steps

    def _network_steps(self) -> list[Operation]:
        inputs = Inputs(self.root_, self.mean_, self.scale_)
        scale = Standardise(self.mean_, self.scale_, root=self.root_)
        hidden, encoder = self._weights("hidden_"), self._weights("encoder_")
        layers = self.layers(encoder)
        kernel = None
        if "anchors_" in vars(self):
            kernel = KernelFeatures(self.anchors_, self.gamma_, self.lift_, self.lift_offset_)
        if layers is None:
            features: list[Operation] = [scale]
            if kernel is not None:
                features += kernel_steps(kernel)
            elif hidden:
                features.append(Function.of_torch(self.hidden_))
            return [*features, Function.of_torch(self.encoder_)]
        W = encoder["W"] / layers.thresholds(len(encoder["W"]))[:, None]
        if kernel is not None:
            # W(Lᵀk - c) as one product
            product = Affine(kernel.weight @ W.T, (W @ -kernel.offset).astype(np.float32))
            first: list[Operation] = [scale, GaussianKernel(kernel.anchors, kernel.gamma), product]
        elif hidden:
            first, factor = self._hidden_steps(inputs, hidden)
            first.append(Affine(W.T * factor[:, None]))
        else:
            first = linear_steps(inputs, W, np.zeros(len(W), np.float32))
        return [*first, _unfolding(layers, encoder, self.n_stages)]

    def _hidden_steps(
        self, inputs: Inputs, weights: Weights
    ) -> tuple[list[Operation], NDArray[np.float32]]:
        """Return the steps of the hidden layer, and the factor of each of its outputs."""
        layers = self.layers(weights)
        if layers is None:
            raise ValueError(f"{type(self).__name__}.layers must also describe the hidden layer")
        theta = layers.thresholds(len(weights["W"]))
        first = linear_steps(inputs, weights["W"] / theta[:, None], weights["c"] / theta)
        output = layers._replace(threshold=None)
        factor = theta if layers.readout is None else np.ones_like(theta)
        return [*first, _unfolding(output, weights, 0)], factor

    def _weights(self, part: str) -> Weights:
        """Return the weights of the encoder or of the hidden layer by name, or an empty dict."""
        prefix = f"{part}."
        return {
            name.removeprefix(prefix): value
            for name, value in self.weights_.items()
            if name.startswith(prefix)
        }

    @property
    def encoder_(self) -> "Encoder":
        """Return the fitted encoder as a PyTorch module."""
        return self._module("encoder_", self.n_stages)

    @property
    def hidden_(self) -> "Encoder":
        """Return the fitted hidden layer as a PyTorch module, with feature_map="hidden"."""
        return self._module("hidden_", 0)

    @needs_torch
    def _module(self, part: str, n_stages: int) -> "Encoder":
        import torch

        weights = self._weights(part) if "weights_" in vars(self) else {}
        if not weights:
            raise AttributeError(f"{type(self).__name__} has no fitted {part}")
        encoder = self._empty_encoder(weights, n_stages)
        if "c" in weights:
            encoder.add_offset()
        encoder.load_state_dict(
            {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
        )
        return encoder.eval().requires_grad_(False)

    def _custom_loss(self) -> "PairLoss | None":
        """Return the loss that replaces Eq. 12, if any."""
        if self.loss == "triplet":
            from antipodal.paper.losses import triplet_loss

            return partial(triplet_loss, margin=self._margin())
        return self.loss if callable(self.loss) else None

    def _margin(self) -> float:
        """Return the margin: by default 0.95 times √(2N)·reach, the distance of random codes."""
        if self._options.margin is not None:
            return self._options.margin
        return 0.95 * math.sqrt(2 * self.n_bits) * self.reach()

    def _seed(self) -> int:
        self._check_parameters()
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _check_parameters(self) -> None:
        """Raise `TypeError` or `ValueError` if a parameter has the wrong type or value."""
        for parameter in fields(self):
            if parameter.init:
                check_type(getattr(self, parameter.name), parameter.name, parameter.type)
        check_whole(self.n_stages, "n_stages", 0)
        check_whole(self.n_hidden, "n_hidden", 1)
        check_nested(self.nested, self.n_bits)
        check_scaling(self.scaling)
        if self.feature_map not in _FEATURE_MAPS:
            raise ValueError(
                f"feature_map must be one of {_FEATURE_MAPS}: got {self.feature_map!r}"
            )
        options = self._options
        options.validate()
        if self.loss not in ("contrastive", "triplet") and not callable(self.loss):
            raise ValueError(
                "loss must be 'contrastive', 'triplet' or a function of (codes, targets): got "
                f"{self.loss!r}. A model file stores only the name of a function"
            )
        if options.centres and (self.loss != "contrastive" or self.nested):
            raise ValueError(
                "centres=True requires loss='contrastive' and nested=(): got "
                f"loss={self.loss!r} and nested={self.nested}"
            )
        if self.loss == "triplet" and options.pairs == "sampled":
            raise ValueError(
                "loss='triplet' requires pairs='batch': sampled pairs contain no triplets"
            )

    def fitted_state(self) -> dict[str, Any]:
        """Return the fitted attributes, with the weights of the network by name."""
        fitted = super().fitted_state()
        weights: Weights = fitted.pop("weights_", {})
        return fitted | weights

    def restore_state(self, fitted: Mapping[str, Any]) -> None:
        """Set the fitted attributes to the result of `fitted_state`."""
        others: dict[str, Any] = {"root_": False}  # missing in files of versions before 0.3
        weights: Weights = {}
        for name, value in fitted.items():
            is_weight = name.startswith(("encoder_.", "hidden_."))
            (weights if is_weight else others)[name] = value
        super().restore_state(others)
        n_bits = len(weights["encoder_.W"])
        expected = vars(self).get("full_bits_", self.n_bits)
        if n_bits != expected:  # checked before memory of that size is allocated
            raise ValueError(f"the encoder computes codes of {n_bits} bits, not {expected}")
        check_nested(self.nested, self.n_bits)
        for name in ("encoder_.S", "encoder_.b"):
            if len(weights[name]) == 1 and self.n_stages > 1:  # tied=True of 0.6 and earlier
                weights[name] = np.repeat(weights[name], self.n_stages, axis=0)
        self.weights_ = weights

    def _empty_encoder(self, weights: Weights, n_stages: int) -> "Encoder":
        """Return an encoder into which saved weights can be loaded."""
        n_bits, n_features = weights["W"].shape
        return self.new_encoder(n_features, n_bits, n_stages)

    @classmethod
    def read_parameters(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a saved model under their names in this version."""
        parameters = dict(saved)
        if "standardize" in parameters:  # before 0.3
            parameters["scaling"] = "each" if parameters.pop("standardize") else "none"
            parameters["front"] = "none" if parameters.pop("kernel", "") == "linear" else "kernel"
        if "training" not in parameters:  # before 0.7 the options were parameters of the hasher
            own = inspect.signature(cls).parameters
            parameters = {
                RENAMED.get(name, name): value
                for name, value in parameters.items()
                if name in own or name not in REMOVED
            }
            moved = [name for name in parameters if name in OPTIONS and name not in own]
            parameters["training"] = {name: parameters.pop(name) for name in moved}
        if parameters["training"] is not None:
            parameters["training"] = Training(**parameters["training"])
        if "nested" in parameters:  # JSON has lists only
            parameters["nested"] = tuple(parameters["nested"])
        return parameters


def _unfolding(layers: Layers, weights: Weights, n_stages: int) -> Unfolding:
    """Return the layers of an encoder, with weights divided by the thresholds of its neurons."""
    theta = layers.thresholds(len(weights["W"]))
    S, b = weights["S"], weights["b"]
    if not len(S) == len(b) == n_stages:
        raise ValueError(f"the encoder has {len(S)} stages, not {n_stages}")
    return Unfolding(
        layers.neuron,
        layers.threshold if layers.readout is None else None,
        [(S[k] * theta / theta[:, None], b[k] / theta) for k in range(n_stages)],
        feeds_input=layers.feeds_input,
        readout=layers.readout,
    )


def _some(rows: NDArray[Any], chosen: NDArray[np.int64]) -> NDArray[Any]:
    """Return the chosen rows in order, without a copy if they are all rows."""
    return rows if len(chosen) == len(rows) else rows[chosen]
