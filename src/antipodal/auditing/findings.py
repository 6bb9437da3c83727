"""What an audit has found: a setting for each code and way to search it, and which to take."""

from dataclasses import dataclass, field
from typing import Any

from antipodal.auditing.setting import SHARES, Setting
from antipodal.auditing.survey import Survey
from antipodal.auditing.truth import Metric
from antipodal.checks import Ids

_SHOWN = (4, 16)  # candidates per result that the table has a column for


@dataclass(frozen=True)
class Audit:
    """What `audit` measured.

    Attributes
    ----------
    survey : Survey
        Rows that are zero, equal or not finite.
    settings : list of Setting
        A code and a way to search it, and what they keep.
    query_rows : (q,), optional
        Which rows the queries are, where they were drawn.
    ndcg, judged_recall : float, optional
        Of the vectors themselves, against judgements.
    truth : (q, k)
        The true neighbours of every query, nearest first; `rows` has the row of X that each of
        these numbers, and of those that settings have found, stands for.
    """

    survey: Survey
    metric: Metric
    k: int
    n_queries: int
    itemsize: int
    settings: list[Setting]
    query_rows: Ids | None = None
    ndcg: float | None = None
    judged_recall: float | None = None
    truth: Ids | None = field(default=None, repr=False)
    rows: Ids | None = field(default=None, repr=False)

    def records(self) -> list[dict[str, Any]]:
        """Return a record per setting, as JSON has them."""
        about: dict[str, Any] = {
            "rows": self.survey.rows - len(self.survey.not_finite),
            "features": self.survey.features,
            "metric": self.metric,
            "k": self.k,
            "queries": self.n_queries,
        }
        if self.ndcg is not None:
            about["ndcg_of_vectors"] = round(self.ndcg, 6)
            about["judged_recall_of_vectors"] = round(self.judged_recall or 0.0, 6)
        n, size = self.survey.features, self.itemsize
        return [about | setting.to_dict(n, size) for setting in self.settings]

    def table(self) -> list[list[str]]:
        """Return headings, and a row per setting as text."""
        judged = ["nDCG", "nDCG, ×4, floats"] if self.ndcg is not None else []
        rescored = [f"×{r}, floats" for r in _SHOWN] + ["×4, int8"]
        rows = [
            ["code", "bytes", "times smaller", "search", "recall", *rescored,
             *(f"candidates for {share:g}" for share in SHARES), *judged,
             "fit, s", "encoded per s", "queries per s"]
        ]  # fmt: skip
        for setting in self.settings:
            cost = setting.cost
            shown = [setting.with_floats.get(r) for r in _SHOWN] + [setting.with_int8.get(4)]
            needed = [setting.candidates_for(share) for share in SHARES]
            rows.append(
                [setting.method, str(cost.bytes),
                 f"{self.survey.features * self.itemsize / cost.bytes:.0f}", setting.search,
                 f"{setting.recall:.3f} ± {setting.recall_error:.3f}",
                 *map(_share, shown),
                 *("–" if r is None else f"×{r}" for r in needed),
                 *(_share(setting.ndcg.get(r)) for r in (1, 4) if judged),
                 f"{cost.fit_seconds:.1f}", f"{cost.encoded_per_second:,.0f}",
                 f"{cost.queries_per_second:,.0f}"]
            )  # fmt: skip
        return rows

    def cheapest(self, keep: float, *, rescored: bool) -> tuple[Setting, int] | None:
        """Return the setting of fewest bytes that keeps this share, and its candidates per result.

        Without `rescored` results come as the codes have them, one candidate for each.
        """
        found = [
            (setting.cost.bytes, r, -setting.recall, i)
            for i, setting in enumerate(self.settings)
            for r, recall in setting.with_floats.items()
            if recall >= keep and (rescored or r == 1)
        ]
        if not found:
            return None
        _, r, _, i = min(found)
        return self.settings[i], r

    def advice(self, keep: float) -> str:
        """Say in a sentence or two which setting keeps the share that is asked for."""
        wanted = f"{100 * keep:g} % of the {self.k} true neighbours"
        plain = self.cheapest(keep, rescored=False)
        rescored = self.cheapest(keep, rescored=True)
        if rescored is None:
            best = max(self.settings, key=lambda setting: max(setting.with_floats.values()))
            r, recall = max(best.with_floats.items(), key=lambda item: item[1])
            return (
                f"No setting keeps {wanted}. {_described(best)} comes nearest, with "
                f"{100 * recall:.1f} % of {r} candidates per result."
            )
        setting, r = rescored
        said = [f"To keep {wanted} in the fewest bytes, take {_described(setting)}"]
        said[0] += (
            f", and put {r} candidates per result in order by their vectors." if r > 1 else "."
        )
        if r > 1 and plain is not None:
            said.append(f"Without the vectors, take {_described(plain[0])}.")
        elif r > 1:
            said.append("Without the vectors no setting keeps as much.")
        return " ".join(said)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _described(setting: Setting) -> str:
    way = "by Hamming distance" if setting.search == "hamming" else "with real queries"
    size = f"{setting.cost.bytes} byte{'s' * (setting.cost.bytes != 1)}"
    return f"{setting.method} at {size} per vector, searched {way}"
