"""Execution of a list of operations: blocks of rows, scratch memory, threads, input checks."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.operations import (
    Array,
    Elementwise,
    Function,
    Operation,
    Workspace,
    run_columns,
)
from antipodal.threads import one_blas_thread, usable_cores
from antipodal.validation import check_finite

_KEPT_ROWS = 256  # scratch memory of larger blocks is released after each call
_MAX_KEPT = 8  # workspaces kept, one per thread that encodes at the same time
_THREAD_BLOCKS = 2  # fewest blocks per thread

Step = Operation | Callable[[Array], Any]


class Pipeline:
    """Operations from rows (m, n) to values (m, n'), applied to blocks of rows.

    Several threads may use a pipeline at the same time: each has its own scratch memory.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.operations: Sequence[Operation] = [
            step if isinstance(step, Operation) else Function(step) for step in steps
        ]
        # Adjacent operations that run on columns run together if one of them is a product.
        groups = [
            (on_columns, list(group))
            for on_columns, group in groupby(self.operations, attrgetter("runs_on_columns"))
        ]
        self._groups = [
            (on_columns and not all(isinstance(each, Elementwise) for each in group), group)
            for on_columns, group in groups
        ]
        self._idle: list[Workspace] = []

    @property
    def block_rows(self) -> int:
        """Rows of a block. They bound the memory, and bits do not depend on them."""
        return max([Operation.block_rows, *(each.block_rows for each in self.operations)])

    def width(self, n_features: int) -> int:
        """Return the number of values per row; raise ValueError if the arrays do not fit."""
        width = n_features
        for operation in self.operations:
            width = operation.width(width)
        return width

    def values(self, rows: NDArray[Any], width: int) -> Array:
        """Return the values of all rows, (m, width)."""
        values = np.empty((len(rows), width), np.float32)

        def write(start: int, block: Array) -> None:
            values[start : start + len(block)] = block

        self.each_block(rows, write)
        return values

    def each_block(
        self, rows: NDArray[Any], receive: Callable[[int, Array], None], first: int = 0
    ) -> None:
        """Call receive(number of the first row, values) for each block, in any order.

        Many rows are distributed to the usable cores. Each thread takes one block after another
        without waiting for others, so that a busy core delays only its own blocks.

        `first` is the number of the first row, if the rows are part of a larger table. Rows and
        values must be finite.
        """
        block_rows = self.block_rows
        starts = range(0, len(rows), block_rows)
        n_threads = min(usable_cores(), len(starts) // _THREAD_BLOCKS)
        idle = self._idle if len(rows) <= _KEPT_ROWS else []

        def run(start: int) -> None:
            try:
                memory = idle.pop()
            except IndexError:
                memory = Workspace()
            block = rows[start : start + block_rows]
            receive(start, self._run(block, memory, first + start))
            if len(idle) < _MAX_KEPT:
                idle.append(memory)

        with one_blas_thread():
            if n_threads < 2:
                for start in starts:
                    run(start)
                return
            pool = ThreadPoolExecutor(n_threads)
            try:
                for _ in pool.map(run, starts):
                    pass  # raises the error of the first block that failed
            finally:
                pool.shutdown(cancel_futures=True)

    def _run(self, rows: NDArray[Any], memory: Workspace, first: int) -> Array:
        """Apply the operations to a block of rows."""
        if rows.dtype == np.float32 and rows.flags.c_contiguous and rows.flags.aligned:
            X: Array = rows
        else:
            X = memory.array(self, *rows.shape)
            with np.errstate(over="ignore"):  # an overflow to infinity is reported below
                X[:] = rows
        if _first_not_finite(X) is not None:
            check_finite(rows, row_numbers=first + np.arange(len(rows)))  # raises
        with np.errstate(all="ignore"):  # reported below
            for on_columns, group in self._groups:
                if on_columns:
                    X = run_columns(group, X, memory)
                    continue
                for operation in group:
                    X = operation.run(X, memory)
        if (bad := _first_not_finite(X)) is not None:
            raise ValueError(
                f"the projection of row {first + bad} of X is not finite: its features are too "
                "large for float32"
            )
        return X


def _first_not_finite(values: Array) -> int | None:
    """Return the first row with an entry that is not finite, or None.

    The sum of squares takes one fast pass. If it overflows, the entries are checked.
    """
    flat = values.reshape(-1)
    with np.errstate(all="ignore"):
        if math.isfinite(np.dot(flat, flat)):
            return None
    bad = ~np.isfinite(values).all(axis=1)
    return int(bad.argmax()) if bad.any() else None
