"""Base classes of all hashers: input checks, encoding in blocks, saving and ONNX export."""

import json
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

import antipodal
from antipodal.codes import Bits, Codes, code_width
from antipodal.errors import AntipodalError, missing_extra
from antipodal.hashers.estimator import Transformer
from antipodal.hashers.operations import ROWS, Function
from antipodal.hashers.pipeline import Pipeline, Step
from antipodal.io.model_file import Arrays, contents_identity, model_file_bytes, write_model_file
from antipodal.io.vectors import VectorFile
from antipodal.threads import one_blas_thread
from antipodal.validation import check_finite, check_labels, check_type, check_whole

FloatArray = NDArray[np.floating[Any]]
Scoring = Literal["hamming", "asymmetric"]

_BLOCKS = 4  # blocks of the pipeline per block of `encode_blocks`: work for several threads


class BaseHasher(Transformer):
    """Map from feature vectors to n_bits bits: bit = (projection > 0).

    A custom hasher implements two methods: `fit`, which calls `check_fit` first, and `pipeline`.
    Its constructor takes at least `n_bits` and `random_state`, and only stores its arguments.
    Fitted attributes are arrays and numbers whose names end with an underscore: `save` writes
    them, and encoding uses them. Assign a new array to change one; changes in place are ignored
    by a cached pipeline.

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

    def pipeline(self) -> Sequence[Step]:
        """Return the steps from rows (m, n) to the values (m, n_bits) whose signs are the bits.

        A step is one of `antipodal.hashers.operations`, or a function of float32 rows. A function
        receives a few rows at a time and returns the same number of rows. This is the only
        description of the encoding: `encode` runs it, and `to_onnx` writes it unless a step is a
        function.
        """
        projector = getattr(self, "projector", None)
        if projector is None:
            raise NotImplementedError(f"{type(self).__name__} must define pipeline()")
        return [Function.of_torch(projector(ROWS))]  # a custom hasher of 0.7 or earlier

    @property
    def scoring(self) -> Scoring:
        """How codes of this model are compared with queries.

        "hamming": by the distance to the code of the query. "asymmetric": by the inner product of
        their signs with the float query, `query`. Collections, the service and the command
        line compare codes this way by default.
        """
        return "hamming"

    def project(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the float values whose signs are the bits, (m, n_bits)."""
        rows = self._check_rows(X)
        return self._pipeline().values(rows, self.n_bits)

    def query(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return float queries for asymmetric search with `search(vectors=…)`, (m, n_bits).

        By default they are the values of `project`.
        """
        return self.project(X)

    def score_offset(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the offset of each row's scores that makes them estimate cosines, (m,).

        It does not change the order of results. By default it is 0.
        """
        return np.zeros(len(self._check_rows(X)))

    def transform(self, X: ArrayLike) -> Bits:
        """Return the bits (m, n_bits), uint8 0 and 1."""
        rows = self._check_rows(X)
        bits = np.empty((len(rows), self.n_bits), np.uint8)

        def write(start: int, values: NDArray[np.float32]) -> None:
            np.greater(values, 0, out=bits[start : start + len(values)].view(np.bool_))

        self._pipeline().each_block(rows, write)
        return self._in_container(bits, X)  # type: ignore[no-any-return]

    def encode(self, X: ArrayLike) -> Codes:
        """Return the packed codes (m, ⌈n_bits / 8⌉), `pack(transform(X))`, computed in blocks.

        X may be a memory-mapped array: apart from the codes, memory does not grow with its rows.
        The code of a row does not depend on the other rows or on the number of threads.
        """
        return self._encode(self._check_rows(X))

    def _encode(self, rows: NDArray[Any], first: int = 0) -> Codes:
        codes = np.empty((len(rows), code_width(self.n_bits)), np.uint8)

        def write(start: int, values: NDArray[np.float32]) -> None:
            codes[start : start + len(values)] = np.packbits(values > 0, axis=1)

        self._pipeline().each_block(rows, write, first)
        return codes

    def encode_blocks(self, X: ArrayLike) -> Iterator[Codes]:
        """Yield the packed codes in blocks of rows, for data larger than memory.

        X may be a file opened by `antipodal.open_vectors`, which is then read in blocks.
        """
        blocks: Iterable[NDArray[Any]]
        self._check_fitted()
        n_rows = _BLOCKS * self._pipeline().block_rows
        if isinstance(X, VectorFile):
            blocks = map(self._check_rows, X.blocks(n_rows))
        else:
            rows = self._check_rows(X)
            starts = range(0, len(rows), n_rows)
            blocks = (rows[start : start + n_rows] for start in starts)
        first = 0
        for block in blocks:
            yield self._encode(block, first)
            first += len(block)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, to be read by `antipodal.load`."""
        write_model_file(path, "hasher", *self._contents())

    def to_bytes(self) -> bytes:
        """Return the bytes of the file that `save` writes, to embed the model in a store."""
        return model_file_bytes("hasher", *self._contents())

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
        so a bit may differ if its projection is zero up to rounding. The graph does not reject
        rows that are not finite. The metadata contains the class, the numbers of bits and
        features, the identity of the model and the version of this library.

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
        self._check_fitted()
        metadata = {
            "class": type(self).__name__,
            "bits": str(self.n_bits),
            "model": identity or contents_identity("hasher", *self._contents()),
            "features": str(self.n_features_in_),
            "antipodal": antipodal.__version__,
        }
        if licence is not None:
            metadata["data_licence"] = licence
        try:
            write_onnx(path, self._pipeline(), self.n_features_in_, self.n_bits, metadata)
        except GraphError as error:
            raise AntipodalError(
                f"{type(self).__name__} cannot be written as ONNX with these settings: {error}"
            ) from error

    def to_faiss(
        self,
        codes: ArrayLike | Iterable[ArrayLike],
        path: str | os.PathLike[str],
        ids: ArrayLike | None = None,
        *,
        refine: ArrayLike | Iterable[ArrayLike] | None = None,
    ) -> None:
        """Write codes as an index that Faiss reads without antipodal.

        For an asymmetric model, search it with the rows themselves: ``faiss.read_index(path)
        .search(rows, k)``. The scores are those of asymmetric search, rounded by the 8-bit
        tables of Faiss. Rows cannot be added to the file: `add` raises an error, since Faiss
        cannot encode them as this model does. Write a new file instead.

        For a Hamming model, search it with codes: ``faiss.read_index_binary(path)
        .search(hasher.encode(rows), k)``. `add` also accepts codes.

        Parameters
        ----------
        codes : uint8 (n, ⌈n_bits / 8⌉), or an iterable of such blocks
            Packed codes of this model; the array may be memory-mapped.
        path : path
            File to write.
        ids : integers (n,), optional
            Unique ids, by default the row numbers.
        refine : (n, features), or an iterable of blocks, optional
            Vectors of the items, for an asymmetric model. The file contains them, in half
            precision if they are float16, and the four best candidates per result are reranked
            by cosine similarity.
        """
        from antipodal.io.faiss import write_faiss

        self._check_fitted()
        query = self.query if self.scoring == "asymmetric" else None
        write_faiss(
            path, codes, self.n_bits,
            ids=ids, query=query, n_features=self.n_features_in_, refine=refine,
        )  # fmt: skip

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
            "scoring": self.scoring,
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

        Names, types and shapes must be those that encoding needs. Widths are compared first, which
        allocates no memory; then random rows are encoded. Products are largest for large rows, and
        kernels for rows of zeros: if neither overflows, typical rows do not either.
        """
        check_whole(self.n_bits, "n_bits", 1)
        check_whole(self.n_features_in_, "n_features_in_", 1)
        for name, kind in get_type_hints(type(self)).items():
            if name.endswith("_") and name in vars(self):
                _check_attribute(getattr(self, name), name, kind)
        width = self._pipeline().width(self.n_features_in_)
        if width != self.n_bits:
            raise ValueError(f"its arrays encode to {width} bits, not {self.n_bits}")
        random_rows = np.random.default_rng(0).standard_normal((ROWS, self.n_features_in_))
        for rows in (8 * random_rows, random_rows, 0 * random_rows):
            for values in (self.project(rows), self.query(rows)):
                if values.shape != (ROWS, width) or not np.isfinite(values).all():
                    raise ValueError("its arrays do not encode finite rows to finite values")

    def check_fit(self, X: ArrayLike, *, min_samples: int = 2) -> NDArray[Any]:
        """Check the training rows and n_bits, and delete all fitted attributes.

        The rows are returned with their dtype. A memory map is checked in blocks, not read into
        memory. `antipodal.hashers.preprocessing.sample_rows` converts training rows to floats.
        """
        from sklearn.utils.validation import check_array, validate_data

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
        """Record the parameters that encoding reads, and drop the cached pipeline."""
        self._fitted_with = {name: getattr(self, name) for name in self.encoding_parameters}
        self._cache: list[tuple[dict[str, Any], Pipeline]] = []

    def _check_fitted(self) -> None:
        """Raise an error before `fit`, and if an encoding parameter was changed after it."""
        if "n_features_in_" not in vars(self):
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self)
        for name, value in vars(self).get("_fitted_with", {}).items():
            now = getattr(self, name)
            if now is not value and now != value:
                raise ValueError(
                    f"{name} was changed from {value!r} to {now!r} after fit: fit again"
                )

    def _check_rows(self, X: ArrayLike) -> NDArray[Any]:
        """Check shape and dtype of the rows to encode; the pipeline checks their values."""
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
        from sklearn.utils.validation import validate_data

        rows: NDArray[Any] = validate_data(
            self, X, reset=False, dtype=None, ensure_all_finite=False, ensure_min_samples=0
        )
        if rows.dtype == object:
            rows = rows.astype(np.float64)
        if not np.issubdtype(rows.dtype, np.number) and rows.dtype != np.bool_:
            raise ValueError(f"features must be numbers: got {rows.dtype}")
        return rows

    def _pipeline(self) -> Pipeline:
        """Return the pipeline, cached while the attributes are the same objects."""
        attributes = dict(vars(self))
        cache: list[tuple[dict[str, Any], Pipeline]] | None = attributes.pop("_cache", None)
        if cache is None:  # a copy of a hasher
            cache = self._cache = []
        known = cache[0][0] if cache else {}
        if known.keys() != attributes.keys() or any(
            value is not known[name] for name, value in attributes.items()
        ):
            # Products of weights must not depend on the number of threads either. Values that are
            # not finite are reported later.
            with one_blas_thread(), np.errstate(all="ignore"):
                cache[:] = [(attributes, Pipeline(self.pipeline()))]
        pipeline: Pipeline = cache[0][1]
        return pipeline

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_cache"}

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


def _check_attribute(value: Any, name: str, kind: object) -> None:
    """Raise an error unless a fitted attribute is finite and has its declared type."""
    if get_origin(kind) is dict:
        return  # a dict of weights, whose shapes the pipeline checks
    is_array = get_origin(kind) is np.ndarray
    if is_array and not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be an array: got {type(value).__name__}")
    if not is_array:
        check_type(value, name, kind)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite: got {value}")


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


def function_name(function: Callable[..., Any]) -> str:
    """Return the qualified name of a function, with the arguments of a `functools.partial`."""
    if isinstance(function, partial):
        bound = [*map(repr, function.args), *(f"{k}={v!r}" for k, v in function.keywords.items())]
        return f"{function_name(function.func)}({', '.join(bound)})"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
