"""Judged relevance: which documents answer which queries, and how well a ranking agrees."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.checks import Ids


@dataclass(frozen=True)
class Judgements:
    """Grades of (query, document) pairs, by row number; pairs that are not named have grade 0.

    Parameters
    ----------
    query, document : (p,)
        Row numbers.
    grade : (p,)
        At least 0.
    """

    query: Ids
    document: Ids
    grade: NDArray[np.float64]

    @classmethod
    def of(cls, table: ArrayLike, n_queries: int, n_documents: int) -> "Judgements":
        """Take a table (p, 2) of query and document, or (p, 3) with a grade, and check it."""
        rows = np.asarray(table)
        if rows.ndim != 2 or rows.shape[1] not in (2, 3) or rows.dtype.kind not in "iuf":
            raise ValueError(
                "relevance must have a row per judgement: query, document and, if they differ, a "
                f"grade: got {rows.dtype} of shape {rows.shape}"
            )
        grades = rows[:, 2].astype(np.float64) if rows.shape[1] == 3 else np.ones(len(rows))
        pairs = rows[:, :2].astype(np.int64)
        for column, n, name in ((0, n_queries, "query"), (1, n_documents, "document")):
            wrong = (pairs[:, column] < 0) | (pairs[:, column] >= n)
            if wrong.any() or (pairs[:, column] != rows[:, column]).any():
                odd = rows[np.flatnonzero(wrong | (pairs[:, column] != rows[:, column]))[0], column]
                raise ValueError(
                    f"relevance names a {name} that is not there: {odd}. They are row numbers from "
                    f"0 to {n - 1}"
                )
        if not (np.isfinite(grades) & (grades >= 0)).all():
            raise ValueError("grades of relevance must be finite and not negative")
        if not (grades > 0).any():
            raise ValueError("relevance has no judgement with a grade above 0")
        return cls(pairs[:, 0], pairs[:, 1], grades)

    def judged(self) -> Ids:
        """Return the queries that have a relevant document, ascending."""
        return np.unique(self.query[self.grade > 0])

    def grades_of(self, queries: Ids, found: Ids) -> NDArray[np.float64]:
        """Return the grades of the documents found for each query, (q, m)."""
        width = int(max(self.document.max(), found.max(initial=0))) + 1
        keys = self.query * width + self.document
        order = np.argsort(keys)
        wanted = queries[:, None] * width + found
        place = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
        hit = keys[order[place]] == wanted
        grades: NDArray[np.float64] = np.where(hit, self.grade[order[place]], 0.0)
        return grades

    def ndcg(self, queries: Ids, found: Ids) -> NDArray[np.float64]:
        """Return nDCG@k of each query, for the k documents found, best first.

        DCG = Σ_r grade_r / log₂(r + 1),    nDCG = DCG / DCG of the best order
        """
        k = found.shape[1]
        discounts = 1 / np.log2(np.arange(2, k + 2))
        gained = self.grades_of(queries, found) @ discounts
        best = np.zeros(len(queries))
        for i, query in enumerate(queries):
            grades = np.sort(self.grade[self.query == query])[::-1][:k]
            best[i] = grades @ discounts[: len(grades)]
        return gained / best

    def recall(self, queries: Ids, found: Ids) -> NDArray[np.float64]:
        """Return the share of each query's relevant documents that was found."""
        counts = np.bincount(self.query[self.grade > 0], minlength=queries.max(initial=0) + 1)
        hits = (self.grades_of(queries, found) > 0).sum(axis=1)
        shares: NDArray[np.float64] = hits / counts[queries]
        return shares

    def scores(self, found: Ids) -> tuple[float, float]:
        """Return nDCG and recall of what was found for all queries, the mean over judged ones."""
        asked = self.judged()
        ndcg, recall = self.ndcg(asked, found[asked]), self.recall(asked, found[asked])
        return float(ndcg.mean()), float(recall.mean())
