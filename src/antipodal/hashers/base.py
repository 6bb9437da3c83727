"""Base classes of all hashers: input checks, encoding in blocks, saving and ONNX export."""

import json
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
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

# Rows of a block: a block and its intermediate results fit the processor's cache.
_BLOCK_ROWS = 4096
# Matrix products of fewer rows use other kernels, which round differently. Blocks are padded to
# this many rows, so that the bits of a row do not depend on the number of rows.
_MIN_ROWS = 32
# Projectors for up to this many rows are cached between calls, since building one takes longer
# than encoding a few rows. Projectors for more rows are not, since their memory is large.
_CACHED_ROWS = 256
_MAX_CACHED = 8  # one projector per thread that encodes at the same time

Projector = Callable[[Tensor], Tensor]


class _ProjectorCache:
    """Idle projectors, valid while the attributes of their hasher are the same objects."""

    def __init__(self) -> None:
        self._entry: tuple[dict[str, Any], list[Projector]] = ({}, [])

    def idle(self, attributes: dict[str, Any]) -> list[Projector]:
        """Return the idle projectors, or a new empty list if an attribute was reassigned."""
        cached, idle = self._entry
        if cached.keys() != attributes.keys() or any(
            value is not cached[name] for name, value in attributes.items()
        ):
            self._entry = _, idle = attributes, []
        return idle


class BaseHasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Map from feature vectors to n_bits bits: bit = (projection > 0).

    A custom hasher implements two methods: `fit`, which calls `check_fit` first, and `projector`.
    Its constructor takes at least `n_bits` and `random_state`, and only stores its arguments.
    Fitted attributes are arrays and numbers whose names end with an underscore: `save` writes
    them, and encoding uses them. Assign a new array to change one; changes in place may be ignored
    by cached projectors.

    Attributes
    ----------
    uses_labels : bool
        Whether `fit` uses y.
    uses_unlabelled : bool
        Whether `fit` accepts `unlabelled` rows in addition to labelled ones.
    encoding_parameters : tuple of str
        Constructor parameters that encoding reads. They must not change after `fit`.
    presets : tuple of str
        Names of classmethods that construct recommended settings.
    """

    n_bits: int
    n_features_in_: int
    uses_labels: ClassVar[bool] = False
    uses_unlabelled: bool = False
    encoding_parameters: ClassVar[tuple[str, ...]] = ("n_bits",)
    presets: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from the rows of X and, if needed, labels y: (n,) or multi-hot (n, c)."""

    @abstractmethod
    def projector(self, max_rows: int) -> Projector:
        """Return the function (m, n) -> (m, n_bits), float32, whose signs are the bits.

        It is called with up to max_rows finite rows, by one thread at a time, and its result is
        used before the next call: it may reuse its own memory. This is the only description of
        the encoding: `encode` runs it, and `to_onnx` traces it.
        """

    def project(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the float values whose signs are the bits, (m, n_bits)."""
        rows = self._check_rows(X)
        projected = np.empty((len(rows), self.n_bits), np.float32)
        for start, values in self._projected_blocks(rows):
            projected[start : start + len(values)] = values
        return projected

    def query(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return float queries for asymmetric search with `search(vectors=…)`, (m, n_bits).

        By default they are the values of `project`.
        """
        return self.project(X)

    def transform(self, X: ArrayLike) -> Bits:
        """Return the bits (m, n_bits), uint8 0 and 1."""
        rows = self._check_rows(X)
        bits = np.empty((len(rows), self.n_bits), np.uint8)
        for start, values in self._projected_blocks(rows):
            np.greater(values, 0, out=bits[start : start + len(values)].view(np.bool_))
        return bits

    def encode(self, X: ArrayLike) -> Codes:
        """Return the packed codes (m, ⌈n_bits / 8⌉), `pack(transform(X))`, computed in blocks.

        X may be a memory-mapped array: apart from the codes, memory does not grow with its rows.
        """
        rows = self._check_rows(X)
        codes = np.empty((len(rows), code_width(self.n_bits)), np.uint8)
        for start, values in self._projected_blocks(rows):
            codes[start : start + len(values)] = np.packbits(values > 0, axis=1)
        return codes

    def encode_blocks(self, X: ArrayLike) -> Iterator[Codes]:
        """Yield the packed codes in blocks of rows, for data larger than memory.

        X may be a file opened by `antipodal.open_vectors`, which is then read in blocks.
        """
        if isinstance(X, VectorFile):
            blocks = self._projected_file(X)
        else:
            blocks = self._projected_blocks(self._check_rows(X))
        for _, values in blocks:
            yield np.packbits(values > 0, axis=1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, to be read by `antipodal.load`."""
        write_model_file(path, "hasher", *self._contents())

    def to_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        identity: str | None = None,
        licence: str | None = None,
    ) -> None:
        """Write the encoding as an ONNX model, for runtimes without Python.

        The input `x` has float32 rows (m, features), for any m. The outputs are `code`, the codes
        of `encode`, and `projection`, the values of `project`. Projections agree up to rounding,
        and a bit may differ where its projection is that close to zero. The graph does not reject
        rows that are not finite. The metadata contains class, bits, features, identity of the
        model and version of this library.

        Parameters
        ----------
        path : path
            File to write.
        identity : str, optional
            Identity of the model in stores, by default that of the file written by `save`.
        licence : str, optional
            Licence of the training data, for the metadata.
        """
        try:
            from antipodal.io.onnx import GraphError, write_onnx
        except ImportError as error:
            raise AntipodalError(missing_extra("to_onnx", str(error.name), "onnx")) from error
        metadata = {
            "class": type(self).__name__,
            "bits": str(self.n_bits),
            "model": identity or contents_identity("hasher", *self._contents()),
            "features": str(self.n_features_in_),
            "antipodal": antipodal.__version__,
        }
        if licence is not None:
            metadata["data_licence"] = licence
        project = self.projector(_CACHED_ROWS)
        try:
            write_onnx(path, project, self.n_features_in_, self.n_bits, metadata)
        except GraphError as error:
            raise AntipodalError(
                f"{type(self).__name__} cannot be written as ONNX with these settings: {error}"
            ) from error

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        """Return the header and the arrays of the model file."""
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
            "parameters": {
                name: _plain(value) for name, value in self.get_params(deep=False).items()
            },
            "fitted": values,
            "antipodal": antipodal.__version__,
        }
        if not is_built_in(type(self)):
            header["module"] = type(self).__module__  # for the error message of `load`
        return header, arrays

    @classmethod
    def read_parameters(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a saved model under their names in this version."""
        return dict(saved)

    def fitted_state(self) -> dict[str, Any]:
        """Return the fitted attributes by name: arrays, and values that JSON can represent."""
        return {k: v for k, v in vars(self).items() if k.endswith("_") and k[0] != "_"}

    def restore_state(self, fitted: Mapping[str, Any]) -> None:
        """Set the fitted attributes to the values of `fitted_state`."""
        for name, value in fitted.items():
            if not name.endswith("_"):
                raise ValueError(f"the names of fitted attributes must end with _: got {name!r}")
            setattr(self, name, value)
        self._mark_fitted()

    def check_restored(self) -> None:
        """Raise an error if the attributes read from a file cannot encode n_features_in_ features.

        Names, types and shapes must be those that encoding needs. It is tried on rows of zeros,
        which take no memory whatever the file claims, and on random rows.
        """
        check_whole(self.n_bits, "n_bits", 1)
        check_whole(self.n_features_in_, "n_features_in_", 1)
        for name, kind in get_type_hints(type(self)).items():
            if name.endswith("_") and name in vars(self):
                _check_attribute(getattr(self, name), name, kind)
        with torch.inference_mode(), self._borrowed_projector(_MIN_ROWS) as project:
            shape = _shape_from_zeros(project, self.n_features_in_)
            if shape != (_MIN_ROWS, self.n_bits):
                raise ValueError(f"its arrays encode to {shape[-1]} bits, not {self.n_bits}")
            if self.n_features_in_ == 1:
                self._check_one_feature(project)
        rows = np.random.default_rng(0).standard_normal((_MIN_ROWS, self.n_features_in_))
        for values in (self.project(rows), self.query(rows)):
            if values.shape != shape or not np.isfinite(values).all():
                raise ValueError("its arrays do not encode finite rows to finite values")

    def _check_one_feature(self, project: Projector) -> None:
        """Raise ValueError if the arrays have more features: one feature broadcasts to any."""
        arrays = self.fitted_state().values()
        for size in {size for array in arrays for size in getattr(array, "shape", ())} - {1}:
            try:
                shape = _shape_from_zeros(project, size)
            except (RuntimeError, ValueError, IndexError):  # the shapes do not match: correct
                continue
            if shape == (_MIN_ROWS, self.n_bits):
                raise ValueError(f"its arrays have {size} features, not 1")

    def check_fit(self, X: ArrayLike, *, min_samples: int = 2) -> NDArray[Any]:
        """Check the training rows and n_bits, and delete all fitted attributes.

        The rows are returned with their dtype, and a memory map is not read into memory: the
        check proceeds in blocks. `antipodal.hashers.rows.sample_rows` converts the rows to learn
        from to floats.
        """
        check_whole(self.n_bits, "n_bits", 1)
        checked = check_array(
            X, dtype="numeric", ensure_all_finite=False, ensure_min_samples=min_samples,
            estimator=self, input_name="X",
        )  # fmt: skip
        rows: NDArray[Any] = np.asarray(checked)  # a memory map becomes a plain array
        check_finite(rows)
        for name in BaseHasher.fitted_state(self):
            delattr(self, name)
        self._mark_fitted()
        validate_data(self, X, skip_check_array=True)  # sets n_features_in_, feature_names_in_
        return rows

    def _mark_fitted(self) -> None:
        """Record the parameters that encoding reads, and drop cached projectors."""
        self._fitted_with = {name: getattr(self, name) for name in self.encoding_parameters}
        self._projectors = _ProjectorCache()

    def _check_fitted(self) -> None:
        """Raise an error before `fit`, and if an encoding parameter was changed after it."""
        if "n_features_in_" not in vars(self):  # scikit-learn's own check is slow
            check_is_fitted(self)
        for name, value in vars(self).get("_fitted_with", {}).items():
            now = getattr(self, name)
            if now is not value and now != value:
                raise ValueError(
                    f"{name} was changed from {value!r} to {now!r} after fit: fit again"
                )

    def _check_rows(self, X: ArrayLike) -> NDArray[Any]:
        """Check shape and dtype of the rows to encode; `map_blocks` checks their values."""
        self._check_fitted()
        if (  # valid rows, without the slower check of scikit-learn
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
        """Project the rows with `map_blocks`."""
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
        """Take a cached projector that no other thread uses, or build one; cache it afterwards."""
        if max_rows > _CACHED_ROWS:
            yield self.projector(max_rows)
            return
        attributes = dict(vars(self))
        if attributes.pop("_projectors", None) is None:  # a copy of a hasher
            self._projectors = _ProjectorCache()
        idle = self._projectors.idle(attributes)
        try:
            project = idle.pop()
        except IndexError:
            project = self.projector(_CACHED_ROWS)
        try:
            yield project
        finally:
            if len(idle) < _MAX_CACHED:
                idle.append(project)  # to its own list: the hasher may have changed meanwhile

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_projectors"}

    @property
    def _n_features_out(self) -> int:
        return self.n_bits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # the output is uint8 for any input
        return tags


class SupervisedHasher(BaseHasher):
    """Hasher that learns from labels: rows are similar if they share one."""

    uses_labels = True

    def check_labels(self, y: ArrayLike | None, n_rows: int) -> NDArray[Any]:
        """Return class numbers from 0 (n,), or multi-hot concepts (n, c); y is required."""
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
    """Return whether a class belongs to this library."""
    return kind.__module__.split(".")[0] == "antipodal"


def block_rows(n_rows: int) -> int:
    """Return the largest number of rows that `map_blocks` passes on at once."""
    return min(_BLOCK_ROWS, max(n_rows, _MIN_ROWS))


@torch.inference_mode()
def map_blocks(
    project: Projector, rows: NDArray[Any], first: int = 0
) -> Iterator[tuple[int, FloatArray]]:
    """Apply `project` to blocks of rows; yield the number of the first row and the values.

    Rows and values must be finite. The values are valid until the next block. `first` is the
    number of the first row, if the rows are part of a larger table.
    """
    size = block_rows(len(rows))
    for start in range(0, len(rows), size):
        with np.errstate(over="ignore"):  # an overflow to infinity is reported below
            block = np.ascontiguousarray(rows[start : start + size], dtype=np.float32)
        n_rows = len(block)
        if n_rows < _MIN_ROWS:
            padded = np.zeros((_MIN_ROWS, block.shape[1]), np.float32)
            padded[:n_rows] = block
            block = padded
        if not block.flags.writeable:
            block = block.copy()  # torch cannot wrap a read-only memory map
        X = torch.from_numpy(block)
        if _first_not_finite(X) is not None:
            check_finite(rows, row_numbers=first + np.arange(len(rows)))  # raises
        values = project(X)[:n_rows]
        if (bad := _first_not_finite(values)) is not None:
            raise ValueError(
                f"the projection of row {first + start + bad} of X is not finite: its features "
                "are too large for float32"
            )
        yield first + start, values.numpy()


def _check_attribute(value: Any, name: str, kind: object) -> None:
    """Raise an error unless a fitted attribute is finite and has its declared type."""
    is_array = get_origin(kind) is np.ndarray
    if is_array and not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be an array: got {type(value).__name__}")
    if not is_array:
        check_type(value, name, kind)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite: got {value}")


def _first_not_finite(values: Tensor) -> int | None:
    """Return the first row with an entry that is not finite, or None.

    The sum is one fast pass. It may overflow, so the entries are checked before the answer.
    """
    if math.isfinite(values.sum().item()):
        return None
    bad = (~torch.isfinite(values)).any(dim=1).nonzero()
    return int(bad[0, 0]) if len(bad) else None


def _plain(value: Any) -> Any:
    """Return a value for JSON: a function becomes its name, a random generator None."""
    if callable(value):
        return function_name(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if is_dataclass(value):  # training options
        return {option.name: _plain(getattr(value, option.name)) for option in fields(value)}
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return value


def _shape_from_zeros(project: Projector, n_features: int) -> tuple[int, ...]:
    """Return the shape of the projection of rows of zeros, which take no memory."""
    return tuple(project(torch.zeros(1, 1).expand(_MIN_ROWS, n_features)).shape)
