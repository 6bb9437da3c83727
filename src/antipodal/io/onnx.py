"""ONNX export: a graph from features to projections and packed codes."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from antipodal.codes import code_width
from antipodal.errors import AntipodalError
from antipodal.io.atomic import replacing

OPSET, IR_VERSION = 18, 8  # of December 2022, supported by most runtimes
_N_CHECKED = 64  # rows that are encoded with NumPy and ONNX before a file is written
_MAX_DIFFERENCE = 1e-3  # relative; larger differences are not rounding


class GraphError(AntipodalError):
    """A projection cannot be represented as a graph."""


class Graph:
    """Nodes and constants of an ONNX graph under construction.

    Attributes
    ----------
    operators : list of onnx.NodeProto
    constants : dict of str to onnx.TensorProto
        Equal constants are stored once.
    """

    def __init__(self) -> None:
        self.operators: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """Add an operator; return its output. Arrays and numbers become constants."""
        return self.nodes(operator, 1, *inputs, **attributes)[0]

    def nodes(self, operator: str, n_outputs: int, *inputs: Any, **attributes: Any) -> list[str]:
        """Add an operator with several outputs."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        outputs = [f"{operator}_{len(self.operators)}_{i}" for i in range(n_outputs)]
        self.operators.append(helper.make_node(operator, names, outputs, **attributes))
        return outputs

    def constant(self, value: Any) -> str:
        """Return the name of a constant: integers become int64, all others float32."""
        array: NDArray[Any] = np.asarray(value)
        dtype = np.int64 if array.dtype.kind in "iu" else np.float32
        array = np.array(array, dtype, order="C")
        key = hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes())
        name = f"constant_{key.hexdigest()[:32]}"
        self.constants.setdefault(name, numpy_helper.from_array(array, name))
        return name


class Encoding(Protocol):
    """The operations of an encoding, and their values in NumPy."""

    @property
    def operations(self) -> Sequence[Any]:
        """Return the operations in order."""

    def values(self, rows: NDArray[Any], width: int) -> NDArray[np.float32]:
        """Return the values of rows."""


def write_onnx(
    path: str | os.PathLike[str],
    encoding: Encoding,
    n_features: int,
    n_bits: int,
    metadata: Mapping[str, str],
) -> None:
    """Write an encoding, (m, n_features) -> (m, n_bits), and the packing of its signs to a file.

    Before writing, random rows are encoded with NumPy and with the graph, and compared.
    """
    model = helper.make_model(
        _encoding_graph(encoding, n_features, n_bits),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="antipodal",
    )
    helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model)
    _check_outputs(model, encoding, n_features, n_bits)
    with replacing(path) as file:
        file.write(model.SerializeToString())


def _encoding_graph(encoding: Encoding, n_features: int, n_bits: int) -> onnx.GraphProto:
    """Return the graph of an encoding and of the packed codes of its signs."""
    graph = Graph()
    x = "x"
    for step in encoding.operations:
        try:
            x = step.export(graph, x)
        except NotImplementedError as error:
            raise GraphError(str(error)) from error
    graph.operators.append(helper.make_node("Identity", [x], ["projection"]))
    code = pack_signs(graph, "projection", n_bits)
    graph.operators.append(helper.make_node("Identity", [code], ["code"]))
    return helper.make_graph(
        graph.operators,
        "encode",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", n_features])],
        [
            helper.make_tensor_value_info("code", TensorProto.UINT8, ["rows", code_width(n_bits)]),
            helper.make_tensor_value_info("projection", TensorProto.FLOAT, ["rows", n_bits]),
        ],
        list(graph.constants.values()),
    )


def pack_signs(graph: Graph, projection: str, n_bits: int) -> str:
    """Add `antipodal.pack(projection > 0)`: Σ 2^(7-i)·bᵢ over the eight bits of each byte."""
    width = code_width(n_bits)
    bits = graph.node("Cast", graph.node("Greater", projection, 0.0), to=TensorProto.FLOAT)
    if n_bits % 8:
        bits = graph.node("Pad", bits, [0, 0, 0, 8 * width - n_bits])
    bits = graph.node("Reshape", bits, [0, width, 8])  # 0 keeps the number of rows
    weighted = graph.node("Mul", bits, np.array([128, 64, 32, 16, 8, 4, 2, 1], np.float32))
    total = graph.node("ReduceSum", weighted, [2], keepdims=0)
    return graph.node("Cast", total, to=TensorProto.UINT8)


def _check_outputs(
    model: onnx.ModelProto, encoding: Encoding, n_features: int, n_bits: int
) -> None:
    """Raise GraphError if the graph and the encoding differ on random rows."""
    rng = np.random.default_rng(0)
    sizes = np.float32(10.0) ** rng.uniform(-2, 2, (_N_CHECKED, 1)).astype(np.float32)
    rows: NDArray[np.float32] = sizes * rng.standard_normal((_N_CHECKED, n_features), np.float32)
    expected = encoding.values(rows, n_bits)
    outputs: Any = ReferenceEvaluator(model).run(["code", "projection"], {"x": rows})
    code, projection = outputs
    difference = float(np.abs(projection - expected).max())
    if not difference <= _MAX_DIFFERENCE * float(np.abs(expected).max()):
        raise GraphError(
            f"its graph computes other values: a projection is off by {difference:.3g}"
        )
    if not np.array_equal(code, np.packbits(projection > 0, axis=1)):
        raise GraphError("its graph packs bits incorrectly")
