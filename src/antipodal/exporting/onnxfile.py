"""An ONNX file that makes codes: features in, packed codes and projections out.

x (m, n) float32  →  projection (m, N) float32,   code (m, ⌈N/8⌉) uint8 = pack(projection > 0)
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from antipodal.codes import code_width
from antipodal.exporting.symbols import Graph, GraphError, Symbol
from antipodal.storage.files import replacing

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
