"""Parts of the report: single queries and their nearest items, by code, label, text and picture."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, unpack
from antipodal.evaluation.breakdown import QueryScores
from antipodal.evaluation.charts import bit_strip
from antipodal.evaluation.htmlpage import html_table, text, thing
from antipodal.evaluation.ranking import hamming_distances

_MOST_CONCEPTS = 8  # of an item that are written out

# Gives what is known of rows, by their number: fields of their metadata.
Describe: TypeAlias = Callable[[Iterable[int]], Mapping[int, Mapping[str, Any]]]


@dataclass(frozen=True)
class Shown:
    """What is shown of queries and items: codes, labels, and what their metadata say, if known."""

    query: Codes
    database: Codes
    labels: tuple[NDArray[Any], NDArray[Any]]
    n_bits: int
    n_nearest: int
    describe_queries: Describe | None = None
    describe_items: Describe | None = None

    def examples(self, n: int) -> str:
        """Show a few queries, spread over all of them."""
        if not n:
            return ""
        asked = np.unique(np.linspace(0, len(self.query) - 1, n).round().astype(int)).tolist()
        tables = self._tables({row: f"query {row}" for row in asked})
        return (
            "<h2>Examples</h2><p>Queries spread over all of them, with their nearest items, which "
            "are row numbers. Below a code, a mark where it differs from the query's.</p>"
            f'<div class="pair examples">{tables}</div>'
        )

    def worst(self, scores: QueryScores, n: int) -> str:
        """Show the queries of lowest average precision."""
        order = np.argsort(scores.average_precision, kind="stable")[:n].tolist()  # NaN come last
        titles = {
            row: f"{scores.average_precision[row]:.2f} %: query {row}"
            for row in order
            if not np.isnan(scores.average_precision[row])
        }
        if not titles:
            return ""
        return (
            "<h2>Queries that find least</h2><p>Those of lowest average precision, which is "
            f'given, with their nearest items.</p><div class="pair examples">'
            f"{self._tables(titles)}</div>"
        )

    def _tables(self, titles: Mapping[int, str]) -> str:
        """Make a table for each of these queries; items that are tied are ordered by row."""
        nearest, distances = {}, {}
        for row in titles:
            found = hamming_distances(self.query[row : row + 1], self.database)[0]
            nearest[row] = np.argsort(found, kind="stable")[: self.n_nearest].tolist()
            distances[row] = found
        ask = self.describe_queries
        queries = {} if ask is None else ask(titles)
        ask = self.describe_items
        items = {} if ask is None else ask({item for found in nearest.values() for item in found})
        tables = []
        for row, title in titles.items():
            mine = self.labels[0][row]
            codes = np.vstack([self.query[row : row + 1], self.database[nearest[row]]])
            bits, *others = unpack(codes, self.n_bits)
            rows = []
            for item, other in zip(nearest[row], others, strict=True):
                theirs = self.labels[1][item]
                shared = (mine == theirs) & (mine == 1) if np.ndim(mine) else mine == theirs
                label = label_text(theirs)
                rows.append(
                    [
                        f"{item}{thing(items[item], '')}" if item in items else str(item),
                        f'<span class="hit">✓ {label}</span>' if np.any(shared) else label,
                        str(distances[row][item]),
                        bit_strip(other, bits),
                    ]
                )
            about = thing(queries[row], "") if row in queries else ""
            caption = f"{title}, label {label_text(mine)} {about}{bit_strip(bits)}"
            tables.append(html_table(["item", "label", "distance", "code"], rows, caption))
        return "".join(tables)


def label_text(label: Any) -> str:
    """Write a class, or the numbers of an item's concepts."""
    if np.ndim(label) == 0:
        return text(label)
    concepts = np.flatnonzero(label)
    more = ", …" if len(concepts) > _MOST_CONCEPTS else ""
    return (", ".join(map(str, concepts[:_MOST_CONCEPTS])) or "none") + more
