"""ONNX export: a graph from features to packed codes and projections."""

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
    """What is computed cannot be written down as a graph."""


class Symbol:
    """A value of the graph, in the place of a float32 tensor. Operations in place rename it."""

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
        """Do what PyTorch was asked to do with a symbol among the arguments."""
        options = options or {}
        given = [*arguments, *options.values()]
        given += [entry for value in given if isinstance(value, (list, tuple)) for entry in value]
        symbol = next(value for value in given if isinstance(value, cls))
        return symbol.graph.apply(function.__name__, *arguments, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # what Python looks for to find out what this is
            raise AttributeError(name)
        return lambda *arguments, **options: self.graph.apply(name, self, *arguments, **options)

    def __len__(self) -> int:
        """Return the rows of memory to work in, which is not used."""
        return 1

    def __bool__(self) -> bool:
        raise GraphError("it decides by a value, and a graph has none")

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
    """A graph that grows.

    Attributes
    ----------
    nodes : list of onnx.NodeProto
    constants : dict of str to onnx.TensorProto
        Equal ones are kept once.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def apply(self, name: str, *arguments: Any, out: Any = None, **options: Any) -> Any:
        """Do what PyTorch has under this name; with `_` behind it, or with `out`, in place."""
        plain = name.strip("_")
        if plain in _SAME and not options:
            result = self.node(_SAME[plain], *map(_real, arguments))
        elif plain in _OTHERS:
            result = _OTHERS[plain](self, *arguments, **options)
        else:
            raise GraphError(f"it calls {name!r}, which has no form in a graph here")
        place = arguments[0] if name.endswith("_") and not name.startswith("__") else out
        if isinstance(place, Symbol):
            place.name = result.name
            return place
        return result

    def node(self, operator: str, *inputs: Any, **attributes: Any) -> Symbol:
        """Add an operator of ONNX; tensors, arrays and numbers among the inputs are constants."""
        return self.node_of_several(operator, 1, *inputs, **attributes)[0]

    def node_of_several(
        self, operator: str, n_outputs: int, *inputs: Any, **attributes: Any
    ) -> list[Symbol]:
        """Add an operator with several outputs."""
        names = [
            value.name if isinstance(value, Symbol) else self.constant(value) for value in inputs
        ]
        outputs = [f"{operator}_{len(self.nodes)}_{place}" for place in range(n_outputs)]
        self.nodes.append(helper.make_node(operator, names, outputs, **attributes))
        return [Symbol(self, name) for name in outputs]

    def constant(self, value: Any) -> str:
        """Return the name of a constant: whole numbers are int64, all others float32."""
        array: NDArray[Any] = np.asarray(value)
        whole = array.dtype.kind in "iu"
        array = np.array(array, np.int64 if whole else np.float32, order="C")
        key = hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes())
        name = f"constant_{key.hexdigest()[:32]}"
        self.constants.setdefault(name, numpy_helper.from_array(array, name))
        return name


def _real(value: Any) -> Any:
    """Return a number as a float: a whole one would be a constant of int64."""
    return np.float32(value) if isinstance(value, (int, float)) else value


_SAME = {
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
    """Return a sum, a largest entry or a length along an axis."""

    def reduce(graph: Graph, a: Any, dim: int, keepdim: bool = False) -> Symbol:
        return graph.node(operator, a, [dim], keepdims=int(keepdim))

    return reduce


def _argmax(graph: Graph, a: Any, dim: int, keepdim: bool = False) -> Symbol:
    return graph.node("ArgMax", a, axis=dim, keepdims=int(keepdim))


def _cat(graph: Graph, parts: Sequence[Any], dim: int = 0) -> Symbol:
    return graph.node("Concat", *parts, axis=dim)


def _clamp(graph: Graph, a: Any, min: Any = None, max: Any = None) -> Any:
    a = a if min is None else graph.node("Max", a, _real(min))
    return a if max is None else graph.node("Min", a, _real(max))


def _copy(graph: Graph, a: Any, b: Any) -> Any:
    return b


def _copysign(graph: Graph, a: Any, b: Any) -> Symbol:
    return graph.node("Mul", graph.node("Abs", a), graph.node("Sign", b))


def _embedding_bag(
    graph: Graph, rows: Any, table: Any, *, mode: str, per_sample_weights: Any, **_: Any
) -> Symbol:
    if mode != "sum":
        raise GraphError(f"it calls 'embedding_bag' with mode={mode!r}, and not 'sum'")
    chosen = graph.node("Gather", table, rows, axis=0)  # (m, s, p)
    weights = graph.node("Unsqueeze", per_sample_weights, [1])  # (m, 1, s)
    return graph.node("Squeeze", graph.node("MatMul", weights, chosen), [1])


def _expand_as(graph: Graph, a: Any, other: Any) -> Any:
    return a  # operators stretch what is shorter themselves


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
    step = graph.node("Mul", graph.node("Sub", b, a), _real(weight))
    return graph.node("Add", a, step)


def _rsub(graph: Graph, a: Any, b: Any) -> Symbol:
    return graph.node("Sub", _real(b), a)


def _scatter(graph: Graph, a: Any, dim: int, index: Any, value: float) -> Symbol:
    return graph.node("ScatterElements", a, index, _filled(graph, index, value), axis=dim)


def _softmax(graph: Graph, a: Any, dim: int) -> Symbol:
    return graph.node("Softmax", a, axis=dim)


def _square(graph: Graph, a: Any) -> Symbol:
    return graph.node("Mul", a, a)


def _topk(graph: Graph, a: Any, k: int, dim: int = -1, largest: bool = True) -> list[Symbol]:
    return graph.node_of_several("TopK", 2, a, [k], axis=dim, largest=int(largest))


_OTHERS: dict[str, Callable[..., Any]] = {
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


OPSET, IR_VERSION = 18, 8  # of December 2022, which most runtimes know by now
_N_CHECKED = 64  # rows that are encoded both ways before a file is written
_FAR = 1e-3  # relative: what rounding does not explain


def write_onnx(
    path: str | os.PathLike[str],
    project: Callable[[Tensor], Tensor],
    n_features: int,
    n_bits: int,
    about: Mapping[str, str],
) -> None:
    """Write what `project` computes, (m, n_features) -> (m, n_bits), and the packing of its signs.

    A few rows are encoded both ways first: a file that is written computes the same.
    """
    model = helper.make_model(
        traced(project, n_features, n_bits),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="antipodal",
    )
    helper.set_model_props(model, dict(about))
    onnx.checker.check_model(model)
    _check_alike(model, project, n_features)
    with replacing(path) as file:
        file.write(model.SerializeToString())


def traced(project: Callable[[Tensor], Tensor], n_features: int, n_bits: int) -> onnx.GraphProto:
    """Return the graph of a projection and of the codes of its signs."""
    graph = Graph()
    x = Symbol(graph, "x")
    with torch.inference_mode():
        values = project(x)  # type: ignore[arg-type]
    if not isinstance(values, Symbol):
        raise GraphError("its result is in memory that it was given, not returned")
    graph.nodes.append(helper.make_node("Identity", [values.name], ["projection"]))
    code = packed(Symbol(graph, "projection"), n_bits)
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


def packed(projection: Symbol, n_bits: int) -> Symbol:
    """Return `antipodal.pack(projection > 0)`: Σ 2^(7-i)·bᵢ over the eight bits of each byte."""
    graph = projection.graph
    width = code_width(n_bits)
    bits = graph.node("Cast", projection > 0, to=TensorProto.FLOAT)
    if n_bits % 8:
        bits = graph.node("Pad", bits, [0, 0, 0, 8 * width - n_bits])
    bits = graph.node("Reshape", bits, [0, width, 8])  # 0: as many rows as there are
    weighted = bits * np.array([128, 64, 32, 16, 8, 4, 2, 1], np.float32)
    return graph.node(
        "Cast", graph.node("ReduceSum", weighted, [2], keepdims=0), to=TensorProto.UINT8
    )


def _check_alike(
    model: onnx.ModelProto, project: Callable[[Tensor], Tensor], n_features: int
) -> None:
    """Refuse a graph that does not compute what the projection does."""
    rng = np.random.default_rng(0)
    sizes = np.float32(10.0) ** rng.uniform(-2, 2, (_N_CHECKED, 1)).astype(np.float32)
    rows: NDArray[np.float32] = sizes * rng.standard_normal((_N_CHECKED, n_features), np.float32)
    with torch.inference_mode():
        expected = project(torch.from_numpy(rows)).numpy()
    outputs: Any = ReferenceEvaluator(model).run(["code", "projection"], {"x": rows})
    code, made = outputs
    gap = float(np.abs(made - expected).max())
    if not gap <= _FAR * float(np.abs(expected).max()):
        raise GraphError(
            f"it computes something else with symbols than with numbers (a projection is off by "
            f"{gap:.3g}). Does it use memory that it writes to in place?"
        )
    if not np.array_equal(code, np.packbits(made > 0, axis=1)):
        raise GraphError("the graph does not pack bits as codes have them")
