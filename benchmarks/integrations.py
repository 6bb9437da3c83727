"""Recall and size next to sentence-transformers, nDCG next to mteb, and stores that begin empty.

    python benchmarks/integrations.py FOLDER --json benchmarks/results/integrations.json

FOLDER has clinc150_minilm.npz and banking77_minilm.npz, whose rows are split into a corpus and 500
queries, and scifact_minilm.npz. Needs the dependency group `integrations`. `--data` chooses some of
them.

`search` compares `semantic_search_faiss` of sentence-transformers with `semantic_search`, on the
same vectors in one process: recall@10, bytes per vector, bytes of the index after the searches,
and processor seconds of all queries, the least of five repetitions. `start` has the recall of a
store that begins empty, whose codes are made by a random frame, and of the model that is fitted to
all rows. `mteb` has the nDCG@10 of the 300 test queries of SciFact by `mteb.evaluate`, with floats,
with the wrapper for compression of mteb, and with `CompressedEncoder`.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faiss
import mteb
import numpy as np
from datasets import Dataset
from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask
from mteb.models import CompressionWrapper
from mteb.types import OutputDType
from numpy.typing import NDArray
from sentence_transformers.util import quantization

from antipodal import HammingIndex, LinfHash, __version__
from antipodal.integrations.lazy_collection import random_model
from antipodal.integrations.mteb import CompressedEncoder
from antipodal.integrations.sentence_transformers import quantize_embeddings, semantic_search

K, N_QUERIES, RESCORE, SIZES, REPEATS = 10, 500, 4, (48, 96), 5
PACKAGES = ("sentence-transformers", "mteb", "faiss-cpu")


def unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    floats = rows.astype(np.float32)
    return floats / np.linalg.norm(floats, axis=1, keepdims=True)


def split(folder: Path, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the corpus and the queries of a data set."""
    rows = unit(np.load(folder / f"{name}_minilm.npz")["X"])
    order = np.random.default_rng(0).permutation(len(rows))
    return rows[order[N_QUERIES:]], rows[order[:N_QUERIES]]


def timed(search: Callable[[], Any]) -> tuple[Any, float]:
    """Return the results of a search, and the fewest processor seconds of REPEATS after 5 others.

    An index of antipodal prepares its fastest form after a few searches.
    """
    for _ in range(5):
        search()
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        results = search()
        seconds.append(time.process_time() - start)
    return results, min(seconds)


def recall(results: Any, true: NDArray[Any]) -> float:
    found = [[hit["corpus_id"] for hit in hits] for hits in results]
    shares = [np.isin(a, b).mean() for a, b in zip(true, found, strict=True)]
    return round(float(np.mean(shares)), 4)


def theirs(corpus: Any, queries: Any, true: Any) -> list[dict[str, Any]]:
    """Return the records of sentence-transformers."""
    records = []
    for precision, rescore in (("float32", False), ("uint8", True), ("ubinary", False),
                               ("ubinary", True)):  # fmt: skip
        codes = quantization.quantize_embeddings(corpus, precision=precision)
        options: dict[str, Any] = {
            "corpus_precision": precision, "top_k": K, "rescore": rescore,
            "rescore_multiplier": RESCORE, "calibration_embeddings": corpus, "output_index": True,
        }  # fmt: skip
        *_, index = quantization.semantic_search_faiss(queries, codes, **options)
        (results, _, _), seconds = timed(
            partial(quantization.semantic_search_faiss, queries, corpus_index=index, **options)
        )
        is_binary = isinstance(index, faiss.IndexBinary)
        written = faiss.serialize_index_binary(index) if is_binary else faiss.serialize_index(index)
        rescored = ", rescored" if rescore else ""
        records.append({
            "library": "sentence-transformers", "method": f"{precision}{rescored}",
            "bytes": codes[0].nbytes, "recall": recall(results, true),
            "index_bytes": len(written), "seconds": round(seconds, 3),
        })  # fmt: skip
    return records


def ours(corpus: Any, queries: Any, true: Any) -> list[dict[str, Any]]:
    """Return the records of antipodal."""
    records = []
    for size in SIZES:
        codes, codec = quantize_embeddings(corpus, bytes=size)
        index = HammingIndex(codec.n_bits)
        index.add(codes)
        half = corpus.astype(np.float16)
        for rows, name in ((None, ""), (half, ", rescored by float16")):
            options: dict[str, Any] = {"codec": codec, "corpus": index, "corpus_embeddings": rows}
            (results, _), seconds = timed(
                partial(semantic_search, queries, top_k=K, rescore_multiplier=RESCORE, **options)
            )
            records.append({
                "library": "antipodal", "method": f"{size} bytes{name}", "bytes": size,
                "vector_bytes": 0 if rows is None else rows[0].nbytes,
                "recall": recall(results, true), "index_bytes": index.nbytes,
                "seconds": round(seconds, 3),
            })  # fmt: skip
    return records


def start_empty(corpus: Any, queries: Any, true: Any) -> list[dict[str, Any]]:
    """Return recall with a random frame and with models fitted to the first rows."""
    records = []
    for n_rows in (0, 100, 1000, len(corpus)):
        model = random_model(corpus.shape[1], 8 * SIZES[0]) if not n_rows else LinfHash.asymmetric(
            8 * SIZES[0], random_state=0).fit(corpus[:n_rows])  # fmt: skip
        codes = model.encode(corpus)
        plain, _ = semantic_search(queries, codec=model, corpus=codes, top_k=K)
        again, _ = semantic_search(
            queries, codec=model, corpus=codes, top_k=K, corpus_embeddings=corpus,
            rescore_multiplier=RESCORE,
        )  # fmt: skip
        records.append({"fitted_to": n_rows, "recall": recall(plain, true),
                        "reranked": recall(again, true)})  # fmt: skip
    return records


class Lookup:
    """A model of mteb whose texts are the row numbers of vectors."""

    def __init__(self, data: Any) -> None:
        self.tables = {name: unit(data[name]) for name in ("documents", "queries")}
        baseline = mteb.get_model("mteb/baseline-random-encoder")
        self.similarity = baseline.similarity
        self.similarity_pairwise = baseline.similarity_pairwise
        self.mteb_model_meta = baseline.mteb_model_meta

    def encode(self, inputs: Any, *, prompt_type: Any, **options: Any) -> NDArray[np.float32]:
        """Return the vectors of texts."""
        rows = [int(text.strip()) for batch in inputs for text in batch["text"]]
        return self.tables["queries" if prompt_type == "query" else "documents"][rows]


def task_of(data: Any) -> Any:
    """Return the retrieval task of SciFact, with row numbers as texts."""

    class SciFactRows(MockRetrievalTask):  # type: ignore[misc]
        metadata = MockRetrievalTask.metadata.model_copy(
            update={"name": "SciFactRows", "eval_splits": ["test"]}
        )

        def load_data(self, num_proc: int | None = None, **options: Any) -> None:
            """Make the data set."""
            relevant: dict[str, dict[str, int]] = {}
            for query, document in data["test"].tolist():
                relevant.setdefault(f"q{query}", {})[f"d{document}"] = 1
            corpus = [{"id": f"d{i}", "text": str(i), "title": ""}
                      for i in range(len(data["documents"]))]  # fmt: skip
            queries = [{"id": name, "text": name[1:]} for name in relevant]
            self.dataset = {"default": {"test": {
                "corpus": Dataset.from_list(corpus), "queries": Dataset.from_list(queries),
                "relevant_docs": relevant, "top_ranked": None,
            }}}  # fmt: skip
            self.data_loaded = True

    return SciFactRows()


def judged(folder: Path) -> list[dict[str, Any]]:
    """Return nDCG@10 on SciFact by mteb."""
    data = np.load(folder / "scifact_minilm.npz")
    task = task_of(data)
    models = {
        "float32": (1536, Lookup(data)),
        "mteb, int8": (384, CompressionWrapper(Lookup(data), OutputDType.INT8)),
        "mteb, binary": (48, CompressionWrapper(Lookup(data), OutputDType.BINARY)),
    } | {f"antipodal, {n} bytes": (n, CompressedEncoder(Lookup(data), bytes=n)) for n in SIZES}
    records = []
    for name, (size, model) in models.items():
        result = mteb.evaluate(model, task, cache=None).task_results[0]
        score = result.scores["test"][0]["ndcg_at_10"]
        records.append({"model": name, "bytes": size, "ndcg_at_10": round(float(score), 4)})
    return records


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Return the record of one data set."""
    if name == "scifact":
        return {"data": name, "mteb": judged(folder)}
    corpus, queries = split(folder, name)
    true = np.argsort(-(queries @ corpus.T), axis=1, kind="stable")[:, :K]
    return {
        "data": name,
        "rows": len(corpus),
        "search": [*theirs(corpus, queries, true), *ours(corpus, queries, true)],
        "start": start_empty(corpus, queries, true),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", default="clinc150,banking77,scifact")
    parser.add_argument("--json", type=Path, required=True, help="Records of others are kept.")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    known = json.loads(arguments.json.read_text())["runs"] if arguments.json.exists() else []
    runs = {run["data"]: run for run in known}
    for name in arguments.data.split(","):
        runs[name] = measure(arguments.folder, name)
        print(json.dumps(runs[name], indent=1), flush=True)
    content = {
        "version": __version__, "k": K, "queries": N_QUERIES, "rescore_multiplier": RESCORE,
        "packages": {name: version(name) for name in PACKAGES}, "runs": list(runs.values()),
    }  # fmt: skip
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
