"""ONNX export: a graph from features to projections and packed codes.

The function returned by `BaseHasher.projector` is traced: it is called once with a `Symbol` in
place of its input, and every PyTorch operation on a symbol adds a node to a `Graph`. The only
interface to the hashers is that function; `write_onnx` is the only function that they call.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from antipodal.codes import code_width
from antipodal.errors import AntipodalError
from antipodal.io.atomic import replacing


class GraphError(AntipodalError):
    """A projection cannot be represented as a graph."""


class Symbol:
    """A value of the graph, in place of a float32 tensor. In-place operations change its name."""

    dtype = torch.float32

    def __init__(self, graph: "Graph", name: str) -> None:
        self.graph = graph
        self.name = name

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Add a PyTorch function with a symbol among its arguments to the graph."""
        options = options or {}
        given = [*arguments, *options.values()]
        given += [entry for value in given if isinstance(value, (list, tuple)) for entry in value]
        symbol = next(value for value in given if isinstance(value, cls))
        return symbol.graph.apply(function.__name__, *arguments, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # protocols of Python, such as __array__
            raise AttributeError(name)
        return lambda *arguments, **options: self.graph.apply(name, self, *arguments, **options)

    def __len__(self) -> int:
        """Return 1, a number of rows for scratch memory, which is not used."""
        return 1

    def __bool__(self) -> bool:
        raise GraphError("it branches on a value, which a graph cannot represent")

    def __getitem__(self, index: Any) -> Any:
        return self.graph.apply("getitem", self, index)

    def __add__(self, other: Any) -> Any:
        return self.graph.apply("add", self, other)

    def __sub__(self, other: Any) -> Any:
        return self.graph.apply("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.graph.apply("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.graph.apply("mul", self, other)

    def __truediv__(self, other: Any) -> Any:
        return self.graph.apply("div", self, other)

    def __matmul__(self, other: Any) -> Any:
        return self.graph.apply("matmul", self, other)

    def __gt__(self, other: Any) -> Any:
        return self.graph.apply("gt", self, other)

    def __neg__(self) -> Any:
        return self.graph.apply("neg", self)

    __radd__, __rmul__ = __add__, __mul__


class Graph:
    """Nodes and constants of an ONNX graph under construction.

    Attributes
    ----------
    nodes : list of onnx.NodeProto
    constants : dict of str to onnx.TensorProto
        Equal constants are stored once.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def apply(self, name: str, *arguments: Any, out: Any = None, **options: Any) -> Any:
        """Add the PyTorch operation of this name; with a trailing `_` or `out`, in place."""
        plain = name.strip("_")
        if plain in _ELEMENTARY and not options:
            result = self.node(_ELEMENTARY[plain], *map(_as_float, arguments))
        elif plain in _CONVERTERS:
            result = _CONVERTERS[plain](self, *arguments, **options)
        else:
            raise GraphError(f"it calls {name!r}, which has no ONNX form here")
        target = arguments[0] if name.endswith("_") and not name.startswith("__") else out
        if isinstance(target, Symbol):
            target.name = result.name
            return target
        return result

    def node(self, operator: str, *inputs: Any, **attributes: Any) -> Symbol:
        """Add an ONNX operator; tensors, arrays and numbers among the inputs are constants."""
        return self.node_with_outputs(operator, 1, *inputs, **attributes)[0]

    def node_with_outputs(
        self, operator: str, n_outputs: int, *inputs: Any, **attributes: Any
    ) -> list[Symbol]:
        """Add an ONNX operator with several outputs."""
        names = [
            value.name if isinstance(value, Symbol) else self.constant(value) for value in inputs
        ]
        outputs = [f"{operator}_{len(self.nodes)}_{i}" for i in range(n_outputs)]
        self.nodes.append(helper.make_node(operator, names, outputs, **attributes))
        return [Symbol(self, name) for name in outputs]

    def constant(self, value: Any) -> str:
        """Return the name of a constant: integers become int64, all others float32."""
        array: NDArray[Any] = np.asarray(value)
        dtype = np.int64 if array.dtype.kind in "iu" else np.float32
        array = np.array(array, dtype, order="C")
        key = hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes())
        name = f"constant_{key.hexdigest()[:32]}"
        self.constants.setdefault(name, numpy_helper.from_array(array, name))
        return name


def _as_float(value: Any) -> Any:
    """Return a number as float32, since an integer would become an int64 constant."""
    return np.float32(value) if isinstance(value, (int, float)) else value


# Operations with the same arguments in PyTorch and ONNX.
_ELEMENTARY = {
    "abs": "Abs",
    "add": "Add",
    "cos": "Cos",
    "div": "Div",
    "exp": "Exp",
    "gt": "Greater",
    "matmul": "MatMul",
    "maximum": "Max",
    "minimum": "Min",
    "mm": "MatMul",
    "mul": "Mul",
    "neg": "Neg",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "tanh": "Tanh",
    "truediv": "Div",
    "where": "Where",
}


def _addmm(
    graph: Graph, c: Any, a: Any, b: Any, *, alpha: float = 1.0, beta: float = 1.0
) -> Symbol:
    return graph.node("Gemm", a, b, c, alpha=float(alpha), beta=float(beta))


def _along(operator: str) -> Callable[..., Symbol]:
    """Return the converter of a reduction along an axis."""

    def reduce(graph: Graph, a: Any, dim: int, keepdim: bool = False) -> Symbol:
        return graph.node(operator, a, [dim], keepdims=int(keepdim))

    return reduce


def _argmax(graph: Graph, a: Any, dim: int, keepdim: bool = False) -> Symbol:
    return graph.node("ArgMax", a, axis=dim, keepdims=int(keepdim))


def _cat(graph: Graph, parts: Sequence[Any], dim: int = 0) -> Symbol:
    return graph.node("Concat", *parts, axis=dim)


def _clamp(graph: Graph, a: Any, min: Any = None, max: Any = None) -> Any:
    a = a if min is None else graph.node("Max", a, _as_float(min))
    return a if max is None else graph.node("Min", a, _as_float(max))


def _copy(graph: Graph, a: Any, b: Any) -> Any:
    return b


def _copysign(graph: Graph, a: Any, b: Any) -> Symbol:
    return graph.node("Mul", graph.node("Abs", a), graph.node("Sign", b))


def _embedding_bag(
    graph: Graph, rows: Any, table: Any, *, mode: str, per_sample_weights: Any, **_: Any
) -> Symbol:
    if mode != "sum":
        raise GraphError(f"it calls 'embedding_bag' with mode={mode!r} instead of 'sum'")
    chosen = graph.node("Gather", table, rows, axis=0)  # (m, s, p)
    weights = graph.node("Unsqueeze", per_sample_weights, [1])  # (m, 1, s)
    return graph.node("Squeeze", graph.node("MatMul", weights, chosen), [1])


def _expand_as(graph: Graph, a: Any, other: Any) -> Any:
    return a  # ONNX operators broadcast


def _filled(graph: Graph, a: Any, value: float = 0.0) -> Symbol:
    entry = helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [value])
    return graph.node("ConstantOfShape", graph.node("Shape", a), value=entry)


def _float(graph: Graph, a: Any) -> Symbol:
    return graph.node("Cast", a, to=onnx.TensorProto.FLOAT)


def _getitem(graph: Graph, a: Any, index: Any) -> Any:
    """Return a[rows], a[:, columns], a[:, list] or a[:, None]."""
    for axis, part in enumerate(index if isinstance(index, tuple) else (index,)):
        if part is None:
            a = graph.node("Unsqueeze", a, [axis])
        elif not isinstance(part, slice):
            a = graph.node("Gather", a, part, axis=axis)
        elif part != slice(None):
            stop = np.iinfo(np.int64).max if part.stop is None else part.stop
            a = graph.node("Slice", a, [part.start or 0], [stop], [axis], [part.step or 1])
    return a


def _lerp(graph: Graph, a: Any, b: Any, weight: float) -> Symbol:
    step = graph.node("Mul", graph.node("Sub", b, a), _as_float(weight))
    return graph.node("Add", a, step)


def _rsub(graph: Graph, a: Any, b: Any) -> Symbol:
    return graph.node("Sub", _as_float(b), a)


def _scatter(graph: Graph, a: Any, dim: int, index: Any, value: float) -> Symbol:
    return graph.node("ScatterElements", a, index, _filled(graph, index, value), axis=dim)


def _softmax(graph: Graph, a: Any, dim: int) -> Symbol:
    return graph.node("Softmax", a, axis=dim)


def _square(graph: Graph, a: Any) -> Symbol:
    return graph.node("Mul", a, a)


def _topk(graph: Graph, a: Any, k: int, dim: int = -1, largest: bool = True) -> list[Symbol]:
    return graph.node_with_outputs("TopK", 2, a, [k], axis=dim, largest=int(largest))


_CONVERTERS: dict[str, Callable[..., Any]] = {
    "addmm": _addmm,
    "amax": _along("ReduceMax"),
    "argmax": _argmax,
    "cat": _cat,
    "clamp": _clamp,
    "copy": _copy,
    "copysign": _copysign,
    "embedding_bag": _embedding_bag,
    "expand_as": _expand_as,
    "float": _float,
    "getitem": _getitem,
    "lerp": _lerp,
    "linalg_vector_norm": _along("ReduceL2"),
    "rsub": _rsub,
    "scatter": _scatter,
    "softmax": _softmax,
    "square": _square,
    "sum": _along("ReduceSum"),
    "topk": _topk,
    "zeros_like": _filled,
}


OPSET, IR_VERSION = 18, 8  # of December 2022, supported by most runtimes
_N_CHECKED = 64  # rows that are encoded with PyTorch and ONNX before a file is written
_MAX_DIFFERENCE = 1e-3  # relative; larger differences are not rounding


def write_onnx(
    path: str | os.PathLike[str],
    project: Callable[[Tensor], Tensor],
    n_features: int,
    n_bits: int,
    metadata: Mapping[str, str],
) -> None:
    """Write `project`, (m, n_features) -> (m, n_bits), and the packing of its signs to a file.

    Before writing, random rows are encoded with PyTorch and with the graph, and compared.
    """
    model = helper.make_model(
        trace(project, n_features, n_bits),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="antipodal",
    )
    helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model)
    _check_outputs(model, project, n_features)
    with replacing(path) as file:
        file.write(model.SerializeToString())


def trace(project: Callable[[Tensor], Tensor], n_features: int, n_bits: int) -> onnx.GraphProto:
    """Return the graph of a projection and of the packed codes of its signs."""
    graph = Graph()
    x = Symbol(graph, "x")
    with torch.inference_mode():
        values = project(x)  # type: ignore[arg-type]
    if not isinstance(values, Symbol):
        raise GraphError("it writes its result to memory instead of returning it")
    graph.nodes.append(helper.make_node("Identity", [values.name], ["projection"]))
    code = pack_symbol(Symbol(graph, "projection"), n_bits)
    graph.nodes.append(helper.make_node("Identity", [code.name], ["code"]))
    return helper.make_graph(
        graph.nodes,
        "encode",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", n_features])],
        [
            helper.make_tensor_value_info("code", TensorProto.UINT8, ["rows", code_width(n_bits)]),
            helper.make_tensor_value_info("projection", TensorProto.FLOAT, ["rows", n_bits]),
        ],
        list(graph.constants.values()),
    )


def pack_symbol(projection: Symbol, n_bits: int) -> Symbol:
    """Add `antipodal.pack(projection > 0)`: Σ 2^(7-i)·bᵢ over the eight bits of each byte."""
    graph = projection.graph
    width = code_width(n_bits)
    bits = graph.node("Cast", projection > 0, to=TensorProto.FLOAT)
    if n_bits % 8:
        bits = graph.node("Pad", bits, [0, 0, 0, 8 * width - n_bits])
    bits = graph.node("Reshape", bits, [0, width, 8])  # 0 keeps the number of rows
    weighted = bits * np.array([128, 64, 32, 16, 8, 4, 2, 1], np.float32)
    return graph.node(
        "Cast", graph.node("ReduceSum", weighted, [2], keepdims=0), to=TensorProto.UINT8
    )


def _check_outputs(
    model: onnx.ModelProto, project: Callable[[Tensor], Tensor], n_features: int
) -> None:
    """Raise GraphError if the graph and the projection differ on random rows."""
    rng = np.random.default_rng(0)
    sizes = np.float32(10.0) ** rng.uniform(-2, 2, (_N_CHECKED, 1)).astype(np.float32)
    rows: NDArray[np.float32] = sizes * rng.standard_normal((_N_CHECKED, n_features), np.float32)
    with torch.inference_mode():
        expected = project(torch.from_numpy(rows)).numpy()
    outputs: Any = ReferenceEvaluator(model).run(["code", "projection"], {"x": rows})
    code, projection = outputs
    difference = float(np.abs(projection - expected).max())
    if not difference <= _MAX_DIFFERENCE * float(np.abs(expected).max()):
        raise GraphError(
            f"its graph computes other values (a projection is off by {difference:.3g}). Does it "
            "write to memory in place?"
        )
    if not np.array_equal(code, np.packbits(projection > 0, axis=1)):
        raise GraphError("its graph packs bits incorrectly")
