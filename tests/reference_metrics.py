"""Retrieval metrics by their definitions: slow loops over every order of the ties."""

from itertools import permutations, product
from math import comb, fsum


def relevance_in_every_order(distances, relevant):
    """Yield the relevance of the ranked items, for each order of each group of equal distance."""
    groups = []
    for distance in sorted(set(distances)):
        group = [r for d, r in zip(distances, relevant, strict=True) if d == distance]
        groups.append(list(permutations(group)))
    for order in product(*groups):
        yield [r for group in order for r in group]


def average_precision(ranked, k=None, divisor="relevant"):
    k = len(ranked) if k is None else min(k, len(ranked))
    total = sum(sum(ranked[: i + 1]) / (i + 1) for i in range(k) if ranked[i])
    n = sum(ranked[:k]) if divisor == "found" else min(k, sum(ranked))
    return total / n if n else 0.0


def precision(ranked, k):
    k = min(k, len(ranked))
    return sum(ranked[:k]) / k


def expected_worst_best(score, distances, relevant):
    values = [score(ranked) for ranked in relevance_in_every_order(distances, relevant)]
    return fsum(values) / len(values), min(values), max(values)


def within_radius(distances, relevant, radius, balls):
    """Precision, recall, F1 and the share of queries without results, one row per query."""
    rows = []
    for ds, rs in zip(distances, relevant, strict=True):
        inside = [r for d, r in zip(ds, rs, strict=True) if d <= radius]
        rows.append((len(inside), sum(inside), sum(rs)))
    empty = sum(size == 0 for size, _, _ in rows) / len(rows)
    if balls == "micro":
        rows = [tuple(sum(column) for column in zip(*rows, strict=True))]
    if balls == "nonempty":
        rows = [row for row in rows if row[0]]
    if not rows:
        return 0.0, 0.0, 0.0, empty
    p = sum(hits / size if size else 0.0 for size, hits, _ in rows) / len(rows)
    r = sum(hits / total for _, hits, total in rows) / len(rows)
    return p, r, (2 * p * r / (p + r) if p + r else 0.0), empty


def group_sum(n, r, M, R, m=None):
    """Expected sum of precisions at the first m places of a group, term by term."""
    if r == 0:
        return 0.0
    step = (r - 1) / (n - 1) if n > 1 else 0.0
    return r / n * fsum((R + 1 + (j - 1) * step) / (M + j) for j in range(1, (m or n) + 1))


def expected_average_precision_of_found(items, relevant, k):
    """Expected AP at k divided by the relevant items up to k, by their number in the cut group."""
    total, M, R = 0.0, 0, 0
    for n, r in zip(items, relevant, strict=True):
        if M + n >= k:
            break
        total, M, R = total + group_sum(n, r, M, R), M + n, R + r
    m = k - M
    value = 0.0
    for x in range(max(0, m - (n - r)), min(m, r) + 1):
        chance = comb(r, x) * comb(n - r, m - x) / comb(n, m)
        if R + x:
            value += chance * (total + group_sum(m, x, M, R)) / (R + x)
    return value
