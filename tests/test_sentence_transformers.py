"""`quantize_embeddings` and `semantic_search`, also next to those of sentence-transformers."""

import numpy as np
import pytest
import torch

from antipodal import HammingIndex
from antipodal.integrations.sentence_transformers import quantize_embeddings, semantic_search

K = 10


@pytest.fixture(scope="module")
def embeddings():
    """Return unit vectors with a decaying spectrum, as those of language models have."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3200, 64)) * np.geomspace(1, 0.1, 64)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def corpus_ids(results):
    return [[hit["corpus_id"] for hit in hits] for hits in results]


def recall(results, queries, corpus):
    true = np.argsort(-(queries @ corpus.T), axis=1)[:, :K]
    return np.mean([np.isin(a, b).mean() for a, b in zip(true, corpus_ids(results), strict=True)])


def test_scores_are_those_of_asymmetric_search(embeddings):
    corpus, queries = embeddings[200:], embeddings[:200]
    codes, codec = quantize_embeddings(corpus, bytes=8)
    assert (codes.shape, codes.dtype) == ((3000, 8), np.uint8)
    results, seconds = semantic_search(queries, codec=codec, corpus=codes, top_k=K)
    assert seconds > 0
    scores = codec.query(queries) @ (2.0 * codec.transform(corpus) - 1).T
    scores += codec.score_offset(queries)[:, None]
    expected = -np.sort(-scores, axis=1)[:, :K]
    np.testing.assert_allclose(
        [[h["score"] for h in hits] for hits in results], expected, atol=1e-5
    )


def test_rescoring_returns_the_cosines_of_embeddings(embeddings, tmp_path):
    corpus, queries = embeddings[200:], embeddings[:200]
    codes, codec = quantize_embeddings(corpus, bytes=8)
    np.save(tmp_path / "corpus.npy", corpus)
    rows = np.load(tmp_path / "corpus.npy", mmap_mode="r")
    index = HammingIndex(codec.n_bits)
    index.add(codes)
    found, _ = semantic_search(queries, codec=codec, corpus=index, top_k=K, corpus_embeddings=rows)
    plain, _ = semantic_search(queries, codec=codec, corpus=codes, top_k=K)
    assert recall(found, queries, corpus) > recall(plain, queries, corpus) + 0.1
    for query, hits in zip(queries, found, strict=True):
        scores = [hit["score"] for hit in hits]
        np.testing.assert_allclose(
            scores, corpus[[h["corpus_id"] for h in hits]] @ query, atol=1e-5
        )
        assert scores == sorted(scores, reverse=True)
    everything, _ = semantic_search(
        queries, codec=codec, corpus=codes, corpus_embeddings=rows, rescore_multiplier=300
    )
    assert recall(everything, queries, corpus) == 1


def test_tensors_and_lists_are_accepted(embeddings):
    rows = embeddings[:1500]
    codes, codec = quantize_embeddings(torch.tensor(rows), 8)
    for same in (rows, list(rows), list(torch.tensor(rows)), torch.tensor(rows).requires_grad_()):
        assert np.array_equal(quantize_embeddings(same, codec=codec)[0], codes)
    half, _ = quantize_embeddings(torch.tensor(rows).bfloat16(), codec=codec)
    assert np.unpackbits(half ^ codes).mean() < 0.1


def test_a_codec_is_fitted_to_calibration_embeddings_or_random_for_few(embeddings):
    codes, codec = quantize_embeddings(embeddings[:5], 8, calibration_embeddings=embeddings)
    assert np.array_equal(codes, quantize_embeddings(embeddings, 8)[0][:5])
    assert quantize_embeddings(embeddings[:999], 8)[1].n_refits == 0 < codec.n_refits


def test_recall_is_above_that_of_sentence_transformers_at_the_same_size(embeddings):
    pytest.importorskip("sentence_transformers", reason="needs the dependency group integrations")
    from sentence_transformers.util import quantization

    corpus, queries = embeddings[200:], embeddings[:200]
    binary = quantization.quantize_embeddings(corpus, precision="ubinary")
    codes, codec = quantize_embeddings(corpus, bytes=8)
    assert binary.nbytes == codes.nbytes
    theirs, _ = quantization.semantic_search_faiss(
        queries, corpus_embeddings=binary, corpus_precision="ubinary", top_k=K, rescore_multiplier=4
    )
    ours, _ = semantic_search(queries, codec=codec, corpus=codes, top_k=K)
    assert {tuple(hit) for hits in theirs for hit in hits} == {("corpus_id", "score")}
    assert {tuple(hit) for hits in ours for hit in hits} == {("corpus_id", "score")}
    assert [len(hits) for hits in ours] == [len(hits) for hits in theirs]
    assert recall(ours, queries, corpus) > recall(theirs, queries, corpus) + 0.1
