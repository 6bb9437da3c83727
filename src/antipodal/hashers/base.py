"""What every hasher does alike: check its input, stream it, make bits, pack, save."""

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

import antipodal
from antipodal.checks import check_finite, check_whole
from antipodal.codes import Bits, Codes, code_width
from antipodal.pairs import check_labels
from antipodal.storage.modelfile import Arrays, write_model_file

FloatArray = NDArray[np.floating[Any]]

# Rows of a block, so that it and what is computed from it stay in the cache.
_BLOCK_ROWS = 4096
# Matrix products of fewer rows take other kernels, which round differently: blocks are padded
# to this many, so that the bits of a row do not depend on the rows around it.
_FEWEST_ROWS = 32


class BaseHasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A map from feature vectors to n_bits bits: bit = (projection > 0).

    A subclass learns in `fit`, where it calls `check_fit`, and returns a `projector`. Fitted
    arrays and numbers, whose names end with an underscore, are saved with it. `uses_labels` says
    whether `fit` does anything with y.
    """

    n_bits: int
    n_features_in_: int
    uses_labels: ClassVar[bool] = False

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from the rows of X, with labels y (n,) or multi-hot (n, c) where needed."""

    @abstractmethod
    def projector(self, max_rows: int) -> Callable[[Tensor], Tensor]:
        """Return the map to the values whose signs are the bits, (m, n) -> (m, n_bits), float32.

        It is called with up to max_rows rows, and its result is used before the next call. Rows
        that are not finite must give values that are not.
        """

    def project(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the real values before the sign, (m, n_bits)."""
        rows = self._check_rows(X)
        projected = np.empty((len(rows), self.n_bits), np.float32)
        for start, values in self._projected_blocks(rows):
            projected[start : start + len(values)] = values
        return projected

    def transform(self, X: ArrayLike) -> Bits:
        """Return the bits, uint8 0 and 1, (m, n_bits)."""
        rows = self._check_rows(X)
        bits = np.empty((len(rows), self.n_bits), np.uint8)
        for start, values in self._projected_blocks(rows):
            np.greater(values, 0, out=bits[start : start + len(values)].view(np.bool_))
        return bits

    def encode(self, X: ArrayLike) -> Codes:
        """Return the packed codes, (m, ⌈n_bits / 8⌉): `pack(transform(X))`, a block at a time.

        X may be a memory-mapped array: beside the codes, memory does not grow with its rows.
        """
        rows = self._check_rows(X)
        codes = np.empty((len(rows), code_width(self.n_bits)), np.uint8)
        for start, values in self._projected_blocks(rows):
            codes[start : start + len(values)] = np.packbits(values > 0, axis=1)
        return codes

    def encode_blocks(self, X: ArrayLike) -> Iterator[Codes]:
        """Yield the packed codes a block of rows at a time, for more rows than memory holds."""
        for _, values in self._projected_blocks(self._check_rows(X)):
            yield np.packbits(values > 0, axis=1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, which `antipodal.load` reads."""
        check_is_fitted(self)
        arrays: Arrays = {}
        values: dict[str, Any] = {}
        for name, value in self.fitted_state().items():
            if isinstance(value, np.ndarray) and value.dtype != object:
                arrays[name] = value
            else:
                values[name] = _plain(value)
        header = {
            "class": type(self).__name__,
            "parameters": {name: _plain(value) for name, value in self.get_params().items()},
            "fitted": values,
            "antipodal": antipodal.__version__,
        }
        write_model_file(path, "hasher", header, arrays)

    def fitted_state(self) -> dict[str, Any]:
        """Return what was learned, by name: arrays and values that JSON can hold."""
        return {k: v for k, v in vars(self).items() if k.endswith("_") and k[0] != "_"}

    def restore_state(self, fitted: Mapping[str, Any]) -> None:
        """Take back what `fitted_state` gave."""
        for name, value in fitted.items():
            if not name.endswith("_"):
                raise ValueError(f"{name!r} is not the name of something learned")
            setattr(self, name, value)

    def check_fit(self, X: ArrayLike, *, min_samples: int = 2) -> NDArray[Any]:
        """Check the training rows and the number of bits; then forget what was learned before.

        The rows come back as the numbers they are, and a memory-mapped file stays one: they are
        looked at a block at a time. `antipodal.hashers.parts.rows.sample_rows` makes floats of
        as many as are to be learned from.
        """
        check_whole(self.n_bits, "n_bits", 1)
        checked = check_array(
            X, dtype="numeric", ensure_all_finite=False, ensure_min_samples=min_samples,
            estimator=self, input_name="X",
        )  # fmt: skip
        rows: NDArray[Any] = np.asarray(checked)  # no subclass: a memory map is an array like any
        check_finite(rows)
        for name in BaseHasher.fitted_state(self):
            delattr(self, name)
        validate_data(self, X, skip_check_array=True)  # remembers number and names of features
        return rows

    def _check_rows(self, X: ArrayLike) -> NDArray[Any]:
        """Check shape and kind of the rows to encode; their values are checked by the block."""
        check_is_fitted(self)
        rows: NDArray[Any] = validate_data(
            self, X, reset=False, dtype=None, ensure_all_finite=False
        )
        if rows.dtype == object:
            rows = rows.astype(np.float64)
        if not np.issubdtype(rows.dtype, np.number) and rows.dtype != np.bool_:
            raise ValueError(f"features must be numbers: got {rows.dtype}")
        return rows

    @torch.inference_mode()
    def _projected_blocks(self, rows: NDArray[Any]) -> Iterator[tuple[int, FloatArray]]:
        """Project the rows a block at a time: the number of its first row, and its values.

        The values are good until the next block.
        """
        size = min(_BLOCK_ROWS, max(len(rows), _FEWEST_ROWS))
        project = self.projector(size)
        for start in range(0, len(rows), size):
            block = np.ascontiguousarray(rows[start : start + size], dtype=np.float32)
            n_rows = len(block)
            if n_rows < _FEWEST_ROWS:
                block = np.pad(block, ((0, _FEWEST_ROWS - n_rows), (0, 0)))
            if not block.flags.writeable:
                block = block.copy()  # torch will not wrap a read-only memory map
            values = project(torch.from_numpy(block))[:n_rows]
            # What is not finite in X is not finite here, where there is less to look at. The sum
            # is one quick pass; it may also overflow, so ask again before complaining.
            if not torch.isfinite(values.sum()) and not torch.isfinite(values).all():
                first = int((~torch.isfinite(values)).any(dim=1).nonzero()[0, 0]) + start
                raise ValueError(
                    f"X contains NaN, infinity or a value too large for float32, "
                    f"first in row {first}: features must be finite"
                )
            yield start, values.numpy()

    @property
    def _n_features_out(self) -> int:
        return self.n_bits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # bits, whatever came in
        return tags


class SupervisedHasher(BaseHasher):
    """A hasher that learns from labels: rows are similar if they share one."""

    uses_labels = True

    def check_labels(self, y: ArrayLike | None, n_rows: int) -> NDArray[Any]:
        """Return classes (n,), numbered from 0, or multi-hot concepts (n, c); y must be there."""
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: it "
                "learns from labels"
            )
        return check_labels(y, n_rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it; a random generator has no such form and becomes None."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return value
