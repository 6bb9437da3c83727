"""Array operations of the encoding, each with its NumPy and its ONNX form.

The bits of a row must not depend on the other rows, on the number of threads or on the size of a
block: `product` sums every row in the same order, and all other steps are elementwise or sums
along a single row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Bound = float | np.float32 | Array  # for all columns, or one per column

_MARGIN = 16  # padding of a chunk on each side, and multiple of its rows: widest vector register
_CHUNK_ROWS = 224  # 256 with margins
_OUTPUT = 2  # index of scratch memory
ROWS = 16  # rows that a function of a custom hasher receives at a time
_TINY = np.finfo(np.float32).tiny


class Graph(Protocol):
    """Builder of an ONNX graph: `antipodal.io.onnx.Graph`."""

    def node(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """Add an operator; arrays and numbers among the inputs are constants."""

    def nodes(self, operator: str, n_outputs: int, *inputs: Any, **attributes: Any) -> list[str]:
        """Add an operator with several outputs."""


class Workspace:
    """Scratch memory of one thread, kept from block to block."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, int], Array] = {}

    def array(self, owner: object, n_rows: int, width: int, index: int = 0) -> Array:
        """Return uninitialised memory (n_rows, width), the same for each block of an operation."""
        key = id(owner), index
        held = self._arrays.get(key)
        if held is None or held.size < n_rows * width:
            held = self._arrays[key] = np.empty(n_rows * width, np.float32)
        return held[: n_rows * width].reshape(n_rows, width)

    def like(self, owner: object, X: Array) -> Array:
        """Return X if it is scratch memory, which may be overwritten, or else new memory."""
        if any(X.base is array for array in self._arrays.values()):
            return X
        return self.array(owner, *X.shape)


class Operation(ABC):
    """A step of the encoding: a map of rows (m, n) to rows (m, n'), float32."""

    block_rows: ClassVar[int] = 2048  # rows of a block: bounds the memory, without effect on bits

    def width(self, n: int) -> int:
        """Return n', or raise ValueError if the operation does not accept n features."""
        return n

    @abstractmethod
    def run(self, X: Array, memory: Workspace) -> Array:
        """Apply the operation to a block; the result may be scratch memory."""

    @property
    def runs_on_columns(self) -> bool:
        """Whether `on_columns` is defined, so that `run_columns` can apply the operation."""
        return False

    def on_columns(self, C: Array, memory: Workspace) -> Array:
        """Apply the operation to rows that are the columns of C (n, m), scratch memory."""
        raise NotImplementedError(f"{type(self).__name__} does not run on columns")

    def export(self, graph: Graph, x: str) -> str:
        """Add the operation to an ONNX graph; return the name of its output."""
        raise NotImplementedError(f"{type(self).__name__} has no ONNX form")


def product(X: Array, weight: Array, out: Array) -> Array:
    """Write X @ weight to `out` and return it; the result of a row depends on that row only.

    In BLAS, the order of summation of a row depends on its position: kernels treat the first and
    the last rows differently. Therefore every chunk of rows is padded with zeros on both sides. The
    rows are the columns of the right factor, and so the lanes of vector registers.
    """
    for part in chunks(len(X)):
        from_columns(np.matmul(weight.T, to_columns(X[part])), out[part])
    return out


def run_columns(operations: Sequence[Operation], X: Array, memory: Workspace) -> Array:
    """Apply operations that run on columns to a block of rows, a chunk at a time.

    As in `product`, rows become columns. Only the first input and the last output are transposed;
    the values in between stay in the processor cache.
    """
    out = None
    for part in chunks(len(X)):
        C = to_columns(X[part], memory)
        for operation in operations:
            C = operation.on_columns(C, memory)
        if out is None:
            out = memory.array(operations[-1], len(X), len(C), _OUTPUT)
        from_columns(C, out[part])
    return X if out is None else out


def chunks(n_rows: int) -> Iterator[slice]:
    """Yield slices of rows, each small enough to be one block of a matrix product in any BLAS."""
    for start in range(0, n_rows, _CHUNK_ROWS):
        yield slice(start, min(start + _CHUNK_ROWS, n_rows))


def to_columns(X: Array, memory: Workspace | None = None) -> Array:
    """Return a chunk of rows as columns, with margins of zeros, in new or scratch memory."""
    n_rows, n = X.shape
    n_padded = 2 * _MARGIN + -(-n_rows // _MARGIN) * _MARGIN
    if memory is None:
        padded = np.zeros((n_padded, n), X.dtype)
    else:
        padded = memory.array(to_columns, n_padded, n)
        padded[:_MARGIN] = 0
        padded[_MARGIN + n_rows :] = 0
    padded[_MARGIN : _MARGIN + n_rows] = X
    return padded.T


def from_columns(columns: Array, out: Array) -> Array:
    """Write the columns between the margins as rows to `out` and return it."""
    out[...] = columns[:, _MARGIN : _MARGIN + len(out)].T
    return out


def squared_lengths(X: Array) -> Array:
    """Return ‖x‖² of each row, (m, 1)."""
    lengths: Array = np.vecdot(X, X)[:, None]
    return lengths


def as_signs(bits: NDArray[Any]) -> Array:
    """Return bits as ±1; with random bits this is ten times as fast as `np.where`."""
    signs = bits.astype(np.float32)
    signs *= 2
    signs -= 1
    return signs


def check_width(n: int, expected: int) -> None:
    """Raise ValueError unless n is the number of features that the arrays expect."""
    if n != expected:
        raise ValueError(f"its arrays have {expected} features, not {n}")


class Affine(Operation):
    """Map x to (x - μ)·W + c."""

    def __init__(self, weight: Array, offset: Array | None = None, mean: Array | None = None):
        self.weight = np.ascontiguousarray(weight)
        self.offset, self.mean = offset, mean

    def width(self, n: int) -> int:
        """Return the number of columns of W."""
        check_width(n, len(self.weight))
        for array, size in ((self.mean, n), (self.offset, self.weight.shape[1])):
            if array is not None and array.shape != (size,):
                raise ValueError(f"its arrays have shapes {array.shape} and {self.weight.shape}")
        return int(self.weight.shape[1])

    def run(self, X: Array, memory: Workspace) -> Array:
        """Apply to columns."""
        return run_columns([self], X, memory)

    @property
    def runs_on_columns(self) -> bool:
        """Whether `on_columns` is defined."""
        return True

    def on_columns(self, C: Array, memory: Workspace) -> Array:
        """Subtract, multiply, add."""
        if self.mean is not None:
            C -= self.mean[:, None]
        values = memory.array(self, self.weight.shape[1], C.shape[1])
        np.matmul(self.weight.T, C, out=values)
        if self.offset is not None:
            values += self.offset[:, None]
        return values

    def export(self, graph: Graph, x: str) -> str:
        """Add Sub and Gemm."""
        if self.mean is not None:
            x = graph.node("Sub", x, self.mean)
        if self.offset is None:
            return graph.node("MatMul", x, self.weight)
        return graph.node("Gemm", x, self.weight, self.offset)


class Elementwise(Operation):
    """Operation on each entry, which can write to given memory."""

    @property
    def is_uniform(self) -> bool:
        """Whether all columns have the same parameters, so that `apply` accepts any shape."""
        return False

    @abstractmethod
    def apply(self, X: Array, out: Array) -> Array:
        """Write the result to `out`, which may be X, and return it."""

    def run(self, X: Array, memory: Workspace) -> Array:
        """Apply in place, or to scratch memory."""
        return self.apply(X, memory.like(self, X))


class Standardise(Elementwise):
    """Map x to (r(x) - μ) / σ, with r(x) = x or sign(x)·√|x|; σ may be omitted."""

    def __init__(self, mean: Array, scale: Array | None = None, *, root: bool = False) -> None:
        self.mean, self.scale, self.root = mean, scale, root

    def width(self, n: int) -> int:
        """Return n."""
        for array in (self.mean, self.scale):
            if array is not None:
                check_width(n, len(array))
        return n

    def apply(self, X: Array, out: Array) -> Array:
        """Take roots, subtract, divide."""
        return self._scale(_roots(X, out) if self.root else X, out)

    def _scale(self, X: Array, out: Array) -> Array:
        np.subtract(X, self.mean, out=out)
        return out if self.scale is None else np.divide(out, self.scale, out=out)

    @property
    def runs_on_columns(self) -> bool:
        """Whether `on_columns` is defined."""
        return True

    def on_columns(self, C: Array, memory: Workspace) -> Array:
        """Take roots in scratch memory, since they need the signs; scale in place."""
        rows = C.T
        roots = _roots(rows, memory.array(self, *rows.shape)) if self.root else rows
        return self._scale(roots, rows).T

    def export(self, graph: Graph, x: str) -> str:
        """Add Sub and Div."""
        if self.root:
            x = _export_roots(graph, x)
        x = graph.node("Sub", x, self.mean)
        return x if self.scale is None else graph.node("Div", x, self.scale)


class Root(Elementwise):
    """Map x to sign(x)·√|x|."""

    def apply(self, X: Array, out: Array) -> Array:
        """Take roots of magnitudes and copy signs."""
        return _roots(X, out)

    def export(self, graph: Graph, x: str) -> str:
        """Add Abs, Sqrt and Sign."""
        return _export_roots(graph, x)


def _roots(X: Array, out: Array) -> Array:
    signs = X.copy() if X is out else X
    np.abs(X, out=out)
    np.sqrt(out, out=out)
    return np.copysign(out, signs, out=out)


def _export_roots(graph: Graph, x: str) -> str:
    return graph.node("Mul", graph.node("Sqrt", graph.node("Abs", x)), graph.node("Sign", x))


class UnitRows(Operation):
    """Scale x, or x - μ, to length 1; a row of zeros stays zero."""

    def __init__(self, mean: Array | None = None) -> None:
        self.mean = mean

    def width(self, n: int) -> int:
        """Return n."""
        if self.mean is not None:
            check_width(n, len(self.mean))
        return n

    def run(self, X: Array, memory: Workspace) -> Array:
        """Scale by the largest entry first, since squares may overflow."""
        out = memory.like(self, X)
        if self.mean is not None:
            X = np.subtract(X, self.mean, out=out)
        return unit_rows(X, out)

    def export(self, graph: Graph, x: str) -> str:
        """Add the same two divisions."""
        if self.mean is not None:
            x = graph.node("Sub", x, self.mean)
        largest = graph.node("ReduceMax", graph.node("Abs", x), [1], keepdims=1)
        x = graph.node("Div", x, graph.node("Max", largest, _TINY))
        length = graph.node("ReduceL2", x, [1], keepdims=1)
        return graph.node("Div", x, graph.node("Max", length, _TINY))


def unit_rows(X: Array, out: Array | None = None) -> Array:
    """Return rows scaled to length 1, in two steps since squares may overflow; zero stays zero."""
    largest = np.maximum(X.max(axis=1, keepdims=True), -X.min(axis=1, keepdims=True))
    out = np.divide(X, np.maximum(largest, _TINY), out=out)
    return np.divide(out, np.maximum(np.sqrt(squared_lengths(out)), _TINY), out=out)


class Clip(Elementwise):
    """Clip each entry to bounds, for all columns or one pair per column."""

    def __init__(self, lower: Bound, upper: Bound) -> None:
        self.lower, self.upper = lower, upper

    @property
    def is_uniform(self) -> bool:
        """Whether all columns have the same bounds."""
        return np.ndim(self.lower) == np.ndim(self.upper) == 0

    def apply(self, X: Array, out: Array) -> Array:
        """Clip to the box."""
        if self.is_uniform:  # one pass; it would be slower with bounds per column
            return X.clip(self.lower, self.upper, out=out)
        np.maximum(X, self.lower, out=out)
        return np.minimum(out, self.upper, out=out)

    def export(self, graph: Graph, x: str) -> str:
        """Add Max and Min."""
        return graph.node("Min", graph.node("Max", x, self.lower), self.upper)


class Shrink(Elementwise):
    """Soft threshold: x - clip(x, ±θ), for all columns or one θ per column."""

    def __init__(self, threshold: Bound = 1.0) -> None:
        self.threshold = threshold

    @property
    def is_uniform(self) -> bool:
        """Whether all columns have the same threshold."""
        return np.ndim(self.threshold) == 0

    def apply(self, X: Array, out: Array) -> Array:
        """Subtract the clipped entries."""
        return np.subtract(X, np.clip(X, -self.threshold, self.threshold), out=out)

    def export(self, graph: Graph, x: str) -> str:
        """Add Max, Min and Sub."""
        clipped = Clip(-self.threshold, self.threshold).export(graph, x)
        return graph.node("Sub", x, clipped)


class Rectify(Elementwise):
    """One-sided soft threshold: max(x - θ, 0)."""

    def __init__(self, threshold: float = 1.0) -> None:
        self.threshold = np.float32(threshold)

    @property
    def is_uniform(self) -> bool:
        """Return True."""
        return True

    def apply(self, X: Array, out: Array) -> Array:
        """Subtract θ and set negative entries to 0."""
        np.subtract(X, self.threshold, out=out)
        return np.maximum(out, np.float32(0), out=out)

    def export(self, graph: Graph, x: str) -> str:
        """Add Sub and Relu."""
        return graph.node("Relu", graph.node("Sub", x, self.threshold))


class Each(Elementwise):
    """Apply exp, tanh, cos or the logistic function to each entry."""

    _FUNCTIONS: ClassVar[dict[str, Callable[..., Array]]] = {
        "Cos": np.cos,
        "Exp": np.exp,
        "Tanh": np.tanh,
    }

    def __init__(self, operator: str) -> None:
        self.operator = operator  # its name in ONNX

    @property
    def is_uniform(self) -> bool:
        """Return True."""
        return True

    def apply(self, X: Array, out: Array) -> Array:
        """Apply the function."""
        if self.operator == "Sigmoid":  # ½(1 + tanh(x/2)) cannot overflow
            np.multiply(X, np.float32(0.5), out=out)
            np.tanh(out, out=out)
            out += np.float32(1)
            out *= np.float32(0.5)
            return out
        return self._FUNCTIONS[self.operator](X, out=out)

    def export(self, graph: Graph, x: str) -> str:
        """Add the operator."""
        return graph.node(self.operator, x)


class Chain(Elementwise):
    """Apply elementwise operations one after another."""

    def __init__(self, *parts: Elementwise) -> None:
        self.parts = parts

    @property
    def is_uniform(self) -> bool:
        """Whether all parts are uniform."""
        return all(part.is_uniform for part in self.parts)

    def apply(self, X: Array, out: Array) -> Array:
        """Apply each part."""
        for part in self.parts:
            X = part.apply(X, out)
        return X

    def export(self, graph: Graph, x: str) -> str:
        """Add each part."""
        for part in self.parts:
            x = part.export(graph, x)
        return x


class Softmax(Operation):
    """Map each row to exp(x) / Σ exp(x)."""

    def run(self, X: Array, memory: Workspace) -> Array:
        """Subtract the largest entry first, since exp may overflow."""
        return softmax(X, memory.like(self, X))

    def export(self, graph: Graph, x: str) -> str:
        """Add Softmax."""
        return graph.node("Softmax", x, axis=1)


def softmax(X: Array, out: Array | None = None) -> Array:
    """Return exp(x) / Σ exp(x) of each row."""
    out = np.subtract(X, X.max(axis=1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(axis=1, keepdims=True)
    return out


class SquaredDistances(Operation):
    """Map x to its squared distances from k anchors.

        ‖x - a‖² = ‖x‖² - 2xᵀa + ‖a‖²,    x and a both minus the mean

    Without subtracting the mean, differences of features far from zero would lose digits.
    """

    def __init__(self, anchors: Array, mean: Array | None = None) -> None:
        self.mean = mean
        A = anchors if mean is None else anchors - mean
        self.weight = np.ascontiguousarray(-2 * A.T)
        with np.errstate(over="ignore"):  # infinite distances are reported by the pipeline
            self.norms = np.square(A).sum(axis=1)

    def width(self, n: int) -> int:
        """Return the number of anchors."""
        check_width(n, len(self.weight))
        return int(self.weight.shape[1])

    def run(self, X: Array, memory: Workspace) -> Array:
        """Multiply by the anchors and add both squares."""
        if self.mean is not None:
            X = np.subtract(X, self.mean, out=memory.like(self, X))
        norms = squared_lengths(X)
        squared = product(X, self.weight, memory.array(self, len(X), len(self.norms), 1))
        squared += self.norms
        squared += norms
        return np.maximum(squared, np.float32(0), out=squared)

    def export(self, graph: Graph, x: str) -> str:
        """Add the same sum."""
        if self.mean is not None:
            x = graph.node("Sub", x, self.mean)
        norms = graph.node("ReduceSumSquare", x, [1], keepdims=1)
        squared = graph.node("Add", graph.node("Gemm", x, self.weight, self.norms), norms)
        return graph.node("Max", squared, np.float32(0))


class GaussianKernel(SquaredDistances):
    """Map x to the kernels exp(-γ‖x - a‖²) on k anchors.

    The exponent is the product with 2γa, minus γ‖a‖² and γ‖x‖². Rounding must not make it positive.
    """

    def __init__(self, anchors: Array, gamma: float, mean: Array | None = None) -> None:
        super().__init__(anchors, mean)
        with np.errstate(over="ignore", invalid="ignore"):  # reported by `width` or the pipeline
            self.factor = np.float32(-gamma)
            self.scaled_anchors = self.factor * self.weight.T  # 2γa
            self.scaled_norms = self.factor * self.norms[:, None]

    def width(self, n: int) -> int:
        """Return the number of anchors."""
        if not -np.inf < self.factor <= 0:  # an infinite γ times a distance of 0 is NaN
            raise ValueError(f"γ of its kernel must be positive and finite: got {-self.factor}")
        return super().width(n)

    def run(self, X: Array, memory: Workspace) -> Array:
        """Apply to columns."""
        return run_columns([self], X, memory)

    @property
    def runs_on_columns(self) -> bool:
        """Whether `on_columns` is defined."""
        return True

    def on_columns(self, C: Array, memory: Workspace) -> Array:
        """Multiply by the anchors, subtract both squares, exponentiate."""
        if self.mean is not None:
            C -= self.mean[:, None]
        norms = self.factor * squared_lengths(C.T).T
        values = memory.array(self, len(self.scaled_norms), C.shape[1])
        np.matmul(self.scaled_anchors, C, out=values)
        values += self.scaled_norms
        values += norms
        np.minimum(values, np.float32(0), out=values)
        return np.exp(values, out=values)

    def export(self, graph: Graph, x: str) -> str:
        """Add Mul and Exp."""
        return graph.node("Exp", graph.node("Mul", super().export(graph, x), self.factor))


class Columns(Operation):
    """Select columns, in any order."""

    def __init__(self, columns: NDArray[np.int64]) -> None:
        self.columns = columns

    def width(self, n: int) -> int:
        """Return the number of selected columns."""
        if not len(self.columns) or not 0 <= self.columns.min() <= self.columns.max() < n:
            raise ValueError(f"its columns must be between 0 and {n - 1}")
        return len(self.columns)

    def run(self, X: Array, memory: Workspace) -> Array:
        """Take the columns."""
        out = memory.array(self, len(X), len(self.columns))
        return np.take(X, self.columns, axis=1, out=out, mode="clip")

    def export(self, graph: Graph, x: str) -> str:
        """Add Gather."""
        return graph.node("Gather", x, self.columns, axis=1)


class FirstColumns(Operation):
    """Keep the first columns."""

    def __init__(self, n_columns: int) -> None:
        self.n_columns = n_columns

    def width(self, n: int) -> int:
        """Return the number of kept columns."""
        return min(n, self.n_columns)

    def run(self, X: Array, memory: Workspace) -> Array:
        """Return a slice."""
        return X[:, : self.n_columns]

    def export(self, graph: Graph, x: str) -> str:
        """Add Slice."""
        return graph.node("Slice", x, [0], [self.n_columns], [1], [1])


class Unfolding(Operation):
    """Layers of an encoder after its first product, with f the neuron and θ its thresholds.

        v⁰ = f(d),   vᵏ = f(d + S_k vᵏ⁻¹ + b_k),   z = θ∘vᴷ               [Wang2016, Eq. 11]

    The input is d = Wy/θ; without `feeds_input` the later layers do not receive it.
    """

    def __init__(
        self,
        neuron: Elementwise,
        threshold: Array | None,
        stages: Sequence[tuple[Array, Array]],
        *,
        feeds_input: bool = True,
        readout: Elementwise | None = None,
    ) -> None:
        self.neuron, self.threshold, self.readout = neuron, threshold, readout
        self.stages = [(np.ascontiguousarray(S.T), b) for S, b in stages]
        self.feeds_input = feeds_input

    def width(self, n: int) -> int:
        """Return n."""
        for S, b in self.stages:
            if S.shape != (n, n) or b.shape != (n,):
                raise ValueError(f"a stage has shapes {S.shape} and {b.shape} for {n} units")
        if self.threshold is not None:
            check_width(n, len(self.threshold))
        return n

    def run(self, X: Array, memory: Workspace) -> Array:
        """Apply all layers to rows; used if the neurons of the columns differ."""
        n_rows, n = X.shape
        v = self.neuron.apply(X, memory.array(self, n_rows, n))
        u = memory.array(self, n_rows, n, 1)
        for S, b in self.stages:
            product(v, S, u)
            if self.feeds_input:
                u += X
            u += b
            self.neuron.apply(u, v)
        if self.readout is not None:
            self.readout.apply(v, v)
        return v if self.threshold is None else np.multiply(v, self.threshold, out=v)

    @property
    def runs_on_columns(self) -> bool:
        """Whether all columns have the same neuron and readout."""
        return self.neuron.is_uniform and (self.readout is None or self.readout.is_uniform)

    def on_columns(self, C: Array, memory: Workspace) -> Array:
        """Apply all layers."""
        n, n_columns = C.shape
        v = self.neuron.apply(C, memory.array(self, n, n_columns))  # in place, `clip` is slow
        u = memory.array(self, n, n_columns, 1)
        for S, b in self.stages:
            np.matmul(S.T, v, out=u)
            if self.feeds_input:
                u += C
            u += b[:, None]
            self.neuron.apply(u, v)
        if self.readout is not None:
            self.readout.apply(v, v)
        return v if self.threshold is None else np.multiply(v, self.threshold[:, None], out=v)

    def export(self, graph: Graph, x: str) -> str:
        """Add all layers."""
        v = self.neuron.export(graph, x)
        for S, b in self.stages:
            u = graph.node("Gemm", v, S, b)
            v = self.neuron.export(graph, graph.node("Add", u, x) if self.feeds_input else u)
        if self.readout is not None:
            v = self.readout.export(graph, v)
        return v if self.threshold is None else graph.node("Mul", v, self.threshold)


class Function(Operation):
    """Function of NumPy rows, defined by a custom hasher; it has no ONNX form.

    It is called with `ROWS` rows at a time, so that its bits do not depend on the other rows.
    """

    def __init__(self, function: Callable[[Array], Any]) -> None:
        self.function = function

    @classmethod
    def of_torch(cls, function: Callable[[Any], Any]) -> Self:
        """Wrap a function of PyTorch tensors."""
        import torch

        def call(X: Array) -> Array:
            with torch.inference_mode():
                values: Array = function(torch.from_numpy(np.array(X))).numpy()
            return values

        return cls(call)

    def width(self, n: int) -> int:
        """Return the width of the result for rows of zeros."""
        zeros = np.broadcast_to(np.float32(0), (ROWS, n))  # takes no memory for any n
        return int(self.function(zeros).shape[1])

    def run(self, X: Array, memory: Workspace) -> Array:
        """Call the function; the last rows are padded with zeros."""
        padded = np.zeros((-(-len(X) // ROWS) * ROWS, X.shape[1]), np.float32)
        padded[: len(X)] = X
        parts = [self.function(part) for part in np.split(padded, len(padded) // ROWS)]
        return np.concatenate(parts, dtype=np.float32)[: len(X)]
