"""Hugging Face datasets: codes by `Dataset.map`, and an exported index by `load_faiss_index`."""

import numpy as np
import pytest

pytest.importorskip("datasets", reason="needs the dependency group integrations")

from datasets import Dataset

from antipodal import ITQ
from antipodal.integrations.datasets import encode_column
from antipodal.integrations.sentence_transformers import quantize_embeddings

pytestmark = pytest.mark.filterwarnings("ignore")  # of other projects


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(0).standard_normal((1200, 24)).astype(np.float32)


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_a_column_of_codes_is_added(vectors, form):
    codec = ITQ(n_bits=16, random_state=0).fit(vectors)
    data = Dataset.from_dict({"text": range(1200), "vector": vectors}).with_format(form)
    coded = data.map(encode_column(codec, "vector", "bits"), batched=True, batch_size=500)
    assert np.array_equal(np.array(coded.with_format(None)["bits"]), codec.encode(vectors))
    assert coded.column_names == ["text", "vector", "bits"]
    assert coded.features["bits"].feature.dtype == "uint8"


def test_an_exported_index_finds_the_examples(vectors, tmp_path):
    codes, codec = quantize_embeddings(vectors, bytes=6)
    codec.to_faiss(codes, tmp_path / "codes.faiss")
    data = Dataset.from_dict({"number": range(1200)})
    data.load_faiss_index("codes", str(tmp_path / "codes.faiss"))
    scores = codec.query(vectors) @ (2.0 * np.unpackbits(codes, axis=1) - 1).T
    for i in range(5):
        found_scores, examples = data.get_nearest_examples("codes", vectors[i], k=4)
        np.testing.assert_allclose(found_scores, -np.sort(-scores[i])[:4], rtol=0.05)
        assert examples["number"][0] == i == scores[i].argmax()
