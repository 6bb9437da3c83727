"""What every hasher does alike: check its input, stream it, make bits, pack, save."""

import json
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self, get_origin, get_type_hints

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

import antipodal
from antipodal.codes import Bits, Codes, code_width
from antipodal.errors import AntipodalError, missing_extra
from antipodal.io.model_file import Arrays, contents_identity, write_model_file
from antipodal.io.vectors import VectorFile
from antipodal.paper.losses import function_name
from antipodal.validation import check_finite, check_labels, check_type, check_whole

FloatArray = NDArray[np.floating[Any]]

# Rows of a block, so that it and what is computed from it stay in the cache.
_BLOCK_ROWS = 4096
# Matrix products of fewer rows take other kernels, which round differently: blocks are padded
# to this many, so that the bits of a row do not depend on the rows around it.
_FEWEST_ROWS = 32
# A projector for up to this many rows is kept between calls: to build one takes longer than to
# encode a few rows. Calls with more rows do not notice, and the memory they work in is given back.
_KEPT_ROWS = 256
_MOST_KEPT = 8  # after a time when many threads were encoding

Projector = Callable[[Tensor], Tensor]


class BaseHasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A map from feature vectors to n_bits bits: bit = (projection > 0).

    An own hasher overrides two hooks: it learns in `fit`, which begins with `check_fit`, and
    returns a `projector`. Its constructor takes at least `n_bits` and `random_state`, and only
    stores what it is given. Arrays and numbers whose names end with an underscore are what was
    learned: they are saved, and encoding uses them. To change them, assign: arrays that are
    changed in place may go unnoticed.

    Three class attributes say what cannot be seen from outside: `uses_labels`, whether `fit` does
    anything with y, `uses_unlabelled`, whether it takes rows without labels beside those with, and
    `encoding_parameters`, the parameters that encoding reads beside what was learned. Those must
    not change after `fit`.
    """

    n_bits: int
    n_features_in_: int
    uses_labels: ClassVar[bool] = False
    uses_unlabelled: bool = False
    encoding_parameters: ClassVar[tuple[str, ...]] = ("n_bits",)
    presets: ClassVar[tuple[str, ...]] = ()  # classmethods that construct a recommended setting

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from the rows of X, with labels y (n,) or multi-hot (n, c) where needed."""

    @abstractmethod
    def projector(self, max_rows: int) -> Projector:
        """Return the map to the values whose signs are the bits, (m, n) -> (m, n_bits), float32.

        It is called with up to max_rows finite rows, by one thread at a time, and its result is
        used before the next call: it may have memory of its own to work in.
        """

    def project(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the real values before the sign, (m, n_bits)."""
        rows = self._check_rows(X)
        projected = np.empty((len(rows), self.n_bits), np.float32)
        for start, values in self._projected_blocks(rows):
            projected[start : start + len(values)] = values
        return projected

    def query(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return what real queries are compared with codes by, (m, n_bits): `search(vectors=…)`.

        It is what `project` gives, unless a hasher knows something better.
        """
        return self.project(X)

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
        """Yield the packed codes a block of rows at a time, for more rows than memory holds.

        X may be what `antipodal.open_vectors` gives: then the file is read a block at a time too.
        """
        if isinstance(X, VectorFile):
            blocks = self._projected_file(X)
        else:
            blocks = self._projected_blocks(self._check_rows(X))
        for _, values in blocks:
            yield np.packbits(values > 0, axis=1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, which `antipodal.load` reads."""
        write_model_file(path, "hasher", *self._contents())

    def to_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        identity: str | None = None,
        licence: str | None = None,
    ) -> None:
        """Write what `encode` computes as an ONNX model, for runtimes without Python.

        Its input `x` are float32 rows (m, features), for any m; its outputs `code`, what `encode`
        returns, and `projection`, what `project` does. Both agree up to rounding: a bit may differ
        where its projection is that close to zero. The graph does not refuse rows that are not
        finite. Its metadata has the class, bits, features, the identity of the model and the
        version of this library.

        Parameters
        ----------
        path : path
            Where the file goes.
        identity : str, optional
            Of the model, as stores have it. By default that of the file that `save` would write.
        licence : str, optional
            Of the data that the model was learned from, for the metadata.
        """
        try:
            from antipodal.io.onnx import GraphError, write_onnx
        except ImportError as error:
            raise AntipodalError(missing_extra("to_onnx", str(error.name), "onnx")) from error
        about = {
            "class": type(self).__name__,
            "bits": str(self.n_bits),
            "model": identity or contents_identity("hasher", *self._contents()),
            "features": str(self.n_features_in_),
            "antipodal": antipodal.__version__,
        }
        if licence is not None:
            about["data_licence"] = licence
        project = self.projector(_KEPT_ROWS)
        try:
            write_onnx(path, project, self.n_features_in_, self.n_bits, about)
        except GraphError as error:
            raise AntipodalError(
                f"{type(self).__name__} cannot be written as ONNX with these settings: {error}"
            ) from error

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        """Return the header and the arrays of the file that `save` writes."""
        self._check_fitted()
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
        if not is_built_in(type(self)):
            header["module"] = type(self).__module__  # to tell who loads it what to import
        return header, arrays

    @classmethod
    def read_parameters(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a saved model as this version has them."""
        return dict(saved)

    def fitted_state(self) -> dict[str, Any]:
        """Return what was learned, by name: arrays and values that JSON can hold."""
        return {k: v for k, v in vars(self).items() if k.endswith("_") and k[0] != "_"}

    def restore_state(self, fitted: Mapping[str, Any]) -> None:
        """Take back what `fitted_state` gave."""
        for name, value in fitted.items():
            if not name.endswith("_"):
                raise ValueError(f"{name!r} is not the name of something learned")
            setattr(self, name, value)
        self._remember_parameters()

    def check_restored(self) -> None:
        """Refuse what was read from a file if it does not map n_features_in_ numbers to n_bits.

        Names, kinds and shapes are those that encoding needs, tried on rows of zeros, which take
        no memory whatever the file claims, and on random rows.
        """
        check_whole(self.n_bits, "n_bits", 1)
        check_whole(self.n_features_in_, "n_features_in_", 1)
        for name, kind in get_type_hints(type(self)).items():
            if name.endswith("_") and name in vars(self):
                _check_learned(getattr(self, name), name, kind)
        with torch.inference_mode(), self._borrowed_projector(_FEWEST_ROWS) as project:
            made = _made_of_zeros(project, self.n_features_in_)
            if made != (_FEWEST_ROWS, self.n_bits):
                raise ValueError(
                    f"what it learned makes codes of {made[-1]} bits, not {self.n_bits}"
                )
            if self.n_features_in_ == 1:  # which can be added to what is of any number
                self._check_one_feature(project)
        rows = np.random.default_rng(0).standard_normal((_FEWEST_ROWS, self.n_features_in_))
        for values in (self.project(rows), self.query(rows)):
            if values.shape != made or not np.isfinite(values).all():
                raise ValueError("what it learned does not make finite values of finite rows")

    def _check_one_feature(self, project: Callable[[Tensor], Tensor]) -> None:
        arrays = self.fitted_state().values()
        for size in {size for array in arrays for size in getattr(array, "shape", ())} - {1}:
            try:
                made = _made_of_zeros(project, size)
            except (RuntimeError, ValueError, IndexError):  # as it should be
                continue
            if made == (_FEWEST_ROWS, self.n_bits):
                raise ValueError(f"what it learned is of {size} features, not of one")

    def check_fit(self, X: ArrayLike, *, min_samples: int = 2) -> NDArray[Any]:
        """Check the training rows and the number of bits; then forget what was learned before.

        The rows come back as the numbers they are, and a memory-mapped file stays one: they are
        looked at a block at a time. `antipodal.hashers.rows.sample_rows` makes floats of
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
        self._remember_parameters()
        validate_data(self, X, skip_check_array=True)  # remembers number and names of features
        return rows

    def _remember_parameters(self) -> None:
        self._fitted_with = {name: getattr(self, name) for name in self.encoding_parameters}

    def _check_fitted(self) -> None:
        """Refuse to encode before `fit`, and with parameters that are not those of `fit`."""
        if "n_features_in_" not in vars(self):  # scikit-learn's check takes its time
            check_is_fitted(self)
        for name, value in vars(self).get("_fitted_with", {}).items():
            now = getattr(self, name)
            if now is not value and now != value:
                raise ValueError(
                    f"{name} was changed from {value!r} to {now!r} after fit: fit again"
                )

    def _check_rows(self, X: ArrayLike) -> NDArray[Any]:
        """Check shape and kind of the rows to encode; their values are checked by the block."""
        self._check_fitted()
        if (  # what scikit-learn would find nothing wrong with, after a while
            type(X) is np.ndarray
            and X.dtype in (np.float32, np.float64)
            and X.ndim == 2
            and len(X)
            and X.shape[1] == self.n_features_in_
            and "feature_names_in_" not in vars(self)
        ):
            return X
        rows: NDArray[Any] = validate_data(
            self, X, reset=False, dtype=None, ensure_all_finite=False, ensure_min_samples=0
        )
        if rows.dtype == object:
            rows = rows.astype(np.float64)
        if not np.issubdtype(rows.dtype, np.number) and rows.dtype != np.bool_:
            raise ValueError(f"features must be numbers: got {rows.dtype}")
        return rows

    def _projected_blocks(self, rows: NDArray[Any]) -> Iterator[tuple[int, FloatArray]]:
        """Project the rows a block at a time, as `map_blocks` does."""
        with self._borrowed_projector(block_rows(len(rows))) as project:
            yield from map_blocks(project, rows)

    def _projected_file(self, file: VectorFile) -> Iterator[tuple[int, FloatArray]]:
        """Project the rows of a file as they are read."""
        with self._borrowed_projector(_BLOCK_ROWS) as project:
            first = 0
            for rows in file.blocks(_BLOCK_ROWS):
                yield from map_blocks(project, self._check_rows(rows), first)
                first += len(rows)

    @contextmanager
    def _borrowed_projector(self, max_rows: int) -> Iterator[Projector]:
        """Take a projector that no other thread is using, or build one; keep it afterwards."""
        if max_rows > _KEPT_ROWS:
            yield self.projector(max_rows)
            return
        idle: list[Projector] = self.__dict__.setdefault("_idle_projectors", [])
        try:
            project = idle.pop()
        except IndexError:
            project = self.projector(_KEPT_ROWS)
        try:
            yield project
        finally:
            if len(idle) < _MOST_KEPT:
                idle.append(project)  # to the list it came from: there may be a new one by now

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self.__dict__["_idle_projectors"] = []  # those there were are of what it was before

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_idle_projectors"}

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


def is_built_in(kind: type[BaseHasher]) -> bool:
    """Return whether a class is of this library, and not one from outside."""
    return kind.__module__.split(".")[0] == "antipodal"


def block_rows(n_rows: int) -> int:
    """Return how many rows `map_blocks` takes at a time, at most."""
    return min(_BLOCK_ROWS, max(n_rows, _FEWEST_ROWS))


@torch.inference_mode()
def map_blocks(
    project: Projector, rows: NDArray[Any], first: int = 0
) -> Iterator[tuple[int, FloatArray]]:
    """Map the rows a block at a time: yield the number of its first row, and its values.

    Rows must be finite, and so must be their values. The values are good until the next block.
    Where the rows are part of a larger table, `first` is the number of the first in it.
    """
    size = block_rows(len(rows))
    for start in range(0, len(rows), size):
        with np.errstate(over="ignore"):  # of a number too large for float32: it is named below
            block = np.ascontiguousarray(rows[start : start + size], dtype=np.float32)
        n_rows = len(block)
        if n_rows < _FEWEST_ROWS:
            padded = np.zeros((_FEWEST_ROWS, block.shape[1]), np.float32)
            padded[:n_rows] = block
            block = padded
        if not block.flags.writeable:
            block = block.copy()  # torch will not wrap a read-only memory map
        X = torch.from_numpy(block)
        if _first_not_finite(X) is not None:
            check_finite(rows, row_numbers=first + np.arange(len(rows)))  # raises
        values = project(X)[:n_rows]
        if (bad := _first_not_finite(values)) is not None:
            raise ValueError(
                f"the projection of row {first + start + bad} of X is not finite: its features are "
                "too large to compute with in float32"
            )
        yield first + start, values.numpy()


def _check_learned(value: Any, name: str, kind: object) -> None:
    """Refuse what is not of the kind that a class declares, or not finite."""
    is_array = get_origin(kind) is np.ndarray
    if is_array and not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be an array: got {type(value).__name__}")
    if not is_array:
        check_type(value, name, kind)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite: got {value}")


def _first_not_finite(values: Tensor) -> int | None:
    """Return the first row with an entry that is not finite, if there is one.

    The sum is one quick pass. It may also overflow, so ask again before complaining.
    """
    if math.isfinite(values.sum().item()):
        return None
    bad = (~torch.isfinite(values)).any(dim=1).nonzero()
    return int(bad[0, 0]) if len(bad) else None


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it: a function becomes its name, a random generator None."""
    if callable(value):
        return function_name(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return value


def _made_of_zeros(project: Callable[[Tensor], Tensor], n_features: int) -> tuple[int, ...]:
    """Return the shape of what becomes of rows of zeros, which take no memory."""
    return tuple(project(torch.zeros(1, 1).expand(_FEWEST_ROWS, n_features)).shape)
