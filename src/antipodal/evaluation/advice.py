"""Advice of an audit: the smallest setting of antipodal that reaches a recall, as commands."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from antipodal.evaluation.recall import Metric, Setting

DEFAULT_METHOD = "LinfHash.asymmetric"  # default of `antipodal build`
_SCALE_BYTES = 4  # size of the scale of an int8 vector


@dataclass(frozen=True)
class Advice:
    """A setting to build and search, with its expected recall. `str` returns it as text.

    Attributes
    ----------
    method, bits : str and int
        Hasher with its settings, and its code length.
    bytes : int
        Bytes per vector: those of the code and of the kept vector.
    rerank : int
        Oversampling factor; 1 is no reranking.
    keep_vectors : {"int8", "float16", "float32"}, optional
        Type of the vectors kept for reranking.
    vector_bytes : int
        Bytes of a kept vector.
    recall : float
        Expected recall@k. For a sample it is extrapolated to all rows.
    target : float
        Requested recall.
    command, search_command : str
        Commands that build the collection and search it.
    setting : Setting
        The measured setting.
    """

    method: str
    bits: int
    bytes: int
    rerank: int
    keep_vectors: str | None
    vector_bytes: int
    recall: float
    target: float
    command: str
    search_command: str
    setting: Setting = field(repr=False)
    k: int = 10

    @property
    def reached(self) -> bool:
        """Whether the expected recall reaches the target."""
        return self.recall >= self.target

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable record."""
        names = ("method", "bits", "bytes", "rerank", "keep_vectors", "vector_bytes", "target",
                 "reached", "command", "search_command")  # fmt: skip
        return {"recall": round(self.recall, 6)} | {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        target = f"recall@{self.k} ≥ {self.target:g}"
        lead = f"Advice for {target}" if self.reached else f"Nothing reaches {target}. Nearest"
        return f"{lead}: {self.summary()}"

    def summary(self) -> str:
        """Return the setting, its bytes and its expected recall."""
        size, search = f"{self.bytes} bytes per vector", f"{self.setting.search} search"
        if self.keep_vectors is not None:
            search += f", reranked ×{self.rerank}"
            size += f" ({self.bytes - self.vector_bytes} + {self.vector_bytes} kept as "
            size += f"{self.keep_vectors})"
        return (
            f"{self.method}, {self.bits} bits, {search}: recall@{self.k} {self.recall:.3f}, {size}."
        )


@dataclass(frozen=True)
class Source:
    """Names in the recommended commands: the vector file, the query file and columns.

    Without a query file, the collection is searched by the item `example_id`.
    """

    vectors: str = "vectors.parquet"
    queries: str | None = None
    id_column: str | None = None
    metadata_columns: str | None = None
    example_id: int | str = 0

    def commands(
        self, method: str, bits: int, keep_vectors: str | None, rerank: int, k: int
    ) -> tuple[str, str]:
        """Return the commands that build a collection and search it."""
        build = ["antipodal", "build", self.vectors]
        if self.id_column is not None:
            build += ["--id-column", self.id_column]
        if self.metadata_columns is not None:
            build += ["--metadata-columns", self.metadata_columns]
        if method != DEFAULT_METHOD:
            build += ["--method", method]
        build += ["--bits", str(bits)] if bits % 8 else ["--bytes", str(bits // 8)]
        if keep_vectors is not None:
            build += ["--keep-vectors", keep_vectors]
        query = [f"--id={self.example_id}"] if self.queries is None else [self.queries]
        search = ["antipodal", "search", "docs.db", *query, "-k", str(k)]
        if rerank > 1:
            search += ["--rerank", str(rerank)]
        return shlex.join([*build, "--out", "docs.db"]), shlex.join(search)


def advise(
    settings: Sequence[Setting],
    target: float,
    *,
    max_rerank: int,
    max_bytes: int | None,
    n_features: int,
    itemsize: int,
    metric: Metric,
    k: int,
    source: Source,
) -> Advice | None:
    """Return the setting of fewest bytes that reaches the target, else that of highest recall.

    Only settings that `antipodal build` and `antipodal search` reproduce are considered. Return
    None if there are none within `max_bytes`. Collections rerank by the cosine, so reranking is
    considered for that metric only.
    """
    largest = max_rerank if metric == "cosine" else 1
    choices = [
        choice
        for setting in settings if setting.served
        for choice in _choices(setting, largest, n_features, itemsize)
        if max_bytes is None or choice.bytes <= max_bytes
    ]  # fmt: skip
    if not choices:
        return None
    good = [choice for choice in choices if choice.recall >= target]
    if good:
        best = min(good, key=lambda c: (c.bytes, c.rerank, -c.recall))
    else:
        best = max(choices, key=lambda c: (c.recall, -c.bytes, -c.rerank))
    setting, keep = best.setting, best.keep_vectors
    commands = source.commands(setting.method, setting.bits, keep, best.rerank, k)
    return Advice(
        setting.method, setting.bits, best.bytes, best.rerank, keep, best.vector_bytes,
        best.recall, target, *commands, setting, k,
    )  # fmt: skip


@dataclass(frozen=True)
class _Choice:
    setting: Setting
    rerank: int
    keep_vectors: str | None
    vector_bytes: int
    recall: float

    @property
    def bytes(self) -> int:
        return self.setting.cost.bytes + self.vector_bytes


def _choices(
    setting: Setting, max_rerank: int, n_features: int, itemsize: int
) -> Iterator[_Choice]:
    """Yield a setting without reranking, and reranked by int8 and by unrounded vectors."""
    expected = setting.extrapolated or setting.with_floats
    yield _Choice(setting, 1, None, 0, expected[1])
    # float16 is lossless only for vectors that are float16 already
    name, size = ("float16", 2) if itemsize == 2 else ("float32", 4)
    for r in (r for r in expected if 1 < r <= max_rerank):
        yield _Choice(setting, r, name, size * n_features, expected[r])
        if r in setting.with_int8:
            rounding = setting.with_int8[r] - setting.with_floats[r]
            yield _Choice(setting, r, "int8", n_features + _SCALE_BYTES, expected[r] + rounding)
