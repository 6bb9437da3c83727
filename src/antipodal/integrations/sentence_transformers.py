"""Functions in the shape of `sentence_transformers.quantization`: compress and search arrays."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.hashers.linfhash import LinfHash
from antipodal.index import HammingIndex, Vectors
from antipodal.integrations.lazy_collection import MIN_FIT_ROWS, random_model
from antipodal.validation import check_whole

Results = list[list[dict[str, int | float]]]


def quantize_embeddings(
    embeddings: Any,
    bytes: int = 48,
    *,
    codec: LinfHash | None = None,
    calibration_embeddings: Any = None,
) -> tuple[Codes, LinfHash]:
    """Compress embeddings to codes.

    Parameters
    ----------
    embeddings : array, tensor or list of them, (n, dimensions)
    bytes : int
        Size of a code.
    codec : LinfHash, optional
        The codec of an earlier call, for more embeddings of the same model.
    calibration_embeddings : array, tensor or list of them, optional
        Embeddings that the codec is fitted to, in place of `embeddings`. Fewer than 1,000 are too
        few: the codec is then a random frame, which needs no data but has a lower recall.

    Returns
    -------
    codes : uint8 (n, bytes)
    codec : LinfHash
        `codec.encode` encodes, `codec.reconstruct` decodes, and `codec.save(path)` saves the codec.

    Examples
    --------
    >>> embeddings = np.random.default_rng(0).standard_normal((2000, 64), dtype=np.float32)
    >>> codes, codec = quantize_embeddings(embeddings, bytes=16)
    >>> results, seconds = semantic_search(embeddings[:2], codec=codec, corpus=codes, top_k=3)
    >>> [hits[0]["corpus_id"] for hits in results]
    [0, 1]
    """
    rows = _array(embeddings)
    if codec is None:
        check_whole(bytes, "bytes", 1)
        sample = rows if calibration_embeddings is None else _array(calibration_embeddings)
        if len(sample) < MIN_FIT_ROWS:
            codec = random_model(rows.shape[1], 8 * bytes)
        else:
            codec = LinfHash.asymmetric(8 * bytes, random_state=0).fit(sample)
    return codec.encode(rows), codec


def semantic_search(
    query_embeddings: Any,
    *,
    codec: LinfHash,
    corpus: Codes | HammingIndex,
    top_k: int = 10,
    corpus_embeddings: NDArray[Any] | None = None,
    rescore_multiplier: int = 4,
) -> tuple[Results, float]:
    """Return the nearest codes of each query, and the seconds that the search took.

    Parameters
    ----------
    query_embeddings : array, tensor or list of them, (n_queries, dimensions)
        Float queries, which are not quantised.
    codec : LinfHash
        The codec of `quantize_embeddings`.
    corpus : uint8 (n, bytes) or HammingIndex
        Codes. An index of codes need not be built again for the next call.
    top_k : int
        Number of results per query.
    corpus_embeddings : array (n, dimensions), optional
        Embeddings for rescoring, possibly memory-mapped: only those of candidates are read.
    rescore_multiplier : int
        Oversampling factor of rescoring: find ``top_k * rescore_multiplier`` candidates by codes.

    Returns
    -------
    results : list of lists of dict
        ``{"corpus_id": 3, "score": 0.71}``, best first. Scores estimate cosines; after rescoring
        they are cosines.
    seconds : float
    """
    queries = _array(query_embeddings)
    if isinstance(corpus, HammingIndex):
        index = corpus
    else:
        index = HammingIndex(codec.n_bits)
        index.add(corpus)
    start = time.perf_counter()
    rescore = None if corpus_embeddings is None else Vectors(queries, corpus_embeddings)
    found = index.search(
        vectors=codec.query(queries), k=top_k, rescore=rescore, oversample=rescore_multiplier
    )
    assert found.scores is not None
    scores = found.scores + (0 if rescore else codec.score_offset(queries)[:, None])
    seconds = time.perf_counter() - start
    return [
        [{"corpus_id": i, "score": score} for i, score in zip(*row, strict=True)]
        for row in zip(found.ids.tolist(), scores.tolist(), strict=True)
    ], seconds


def _array(embeddings: Any) -> NDArray[Any]:
    """Return embeddings as an array (n, dimensions), from tensors on any device."""
    if isinstance(embeddings, (list, tuple)):
        return np.stack([_array(row) for row in embeddings])
    if hasattr(embeddings, "detach"):
        embeddings = embeddings.detach().float().cpu()
    return np.asarray(embeddings)
