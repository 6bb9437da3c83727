"""A compressed model in mteb: its mock tasks, and retrieval scores next to those of floats."""

import numpy as np
import pytest

pytest.importorskip("mteb", reason="needs the dependency group integrations")

import mteb
from datasets import Dataset
from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask
from mteb.models import EncoderProtocol
from mteb.results.task_result import TaskResult

from antipodal.integrations.mteb import CompressedEncoder
from antipodal.integrations.sentence_transformers import quantize_embeddings

pytestmark = pytest.mark.filterwarnings("ignore")  # of other projects
RANDOM = "mteb/baseline-random-encoder"


def test_the_mock_tasks_of_mteb_run():
    plain = mteb.get_model(RANDOM)  # of texts only: a task of videos would skip this test
    plain.mteb_model_meta = plain.mteb_model_meta.model_copy(update={"modalities": ["text"]})
    model = CompressedEncoder(plain, bytes=4)
    assert isinstance(model, EncoderProtocol)
    results = mteb.mock_run(model)
    statuses = [status for _, status in results.items() if status is not None]
    assert len(statuses) > 20
    assert all(isinstance(status, TaskResult) for status in statuses), results.to_markdown()


def test_results_are_recorded_as_an_experiment_of_their_own():
    plain = mteb.get_model(RANDOM)
    metas = [plain.mteb_model_meta] + [
        CompressedEncoder(plain, bytes=n).mteb_model_meta for n in (4, 8)
    ]
    assert len({(meta.name, meta.experiment_name) for meta in metas}) == 3


class Lookup:
    """A model whose texts are the row numbers of clustered vectors."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.centres = rng.standard_normal((400, 48)).astype(np.float32)
        noise = rng.standard_normal((1600, 48)).astype(np.float32)
        self.documents = np.repeat(self.centres, 4, axis=0) + 0.3 * noise
        self.mteb_model_meta = mteb.get_model_meta(RANDOM)
        self.similarity = mteb.get_model(RANDOM).similarity
        self.similarity_pairwise = mteb.get_model(RANDOM).similarity_pairwise

    def encode(self, inputs, *, prompt_type, **options):
        texts = [text for batch in inputs for text in batch["text"]]
        table = self.centres if prompt_type == "query" else self.documents
        return table[[int(text.strip()) for text in texts]]


class Clusters(MockRetrievalTask):
    metadata = MockRetrievalTask.metadata.model_copy(
        update={"name": "Clusters", "eval_splits": ["test"]}
    )

    def load_data(self, num_proc=None, **options):
        rows = [{"id": f"d{i}", "text": str(i), "title": ""} for i in range(1600)]
        queries = [{"id": f"q{i}", "text": str(i)} for i in range(400)]
        relevant = {f"q{i}": {f"d{j}": 1 for j in range(4 * i, 4 * i + 4)} for i in range(400)}
        split = {"corpus": Dataset.from_list(rows), "queries": Dataset.from_list(queries),
                 "relevant_docs": relevant, "top_ranked": None}  # fmt: skip
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


def score(model):
    results = mteb.evaluate(model, Clusters(), cache=None)
    return results.task_results[0].scores["test"][0]["recall_at_5"]


def test_retrieval_scores_rise_with_the_size_of_the_codes():
    floats = score(Lookup())
    short, long = (score(CompressedEncoder(Lookup(), bytes=n)) for n in (1, 24))
    assert short < 0.5 < long
    assert floats - 0.02 < long <= floats


def test_documents_are_decoded_codes_and_queries_are_unchanged():
    model = Lookup()
    _, codec = quantize_embeddings(model.documents, bytes=6)
    texts = [{"text": [str(i) for i in range(10)]}]
    options = {"task_metadata": Clusters.metadata, "hf_split": "test", "hf_subset": "default"}
    for wrapped in (CompressedEncoder(model, codec=codec), CompressedEncoder(model, bytes=6)):
        found = wrapped.encode(texts, prompt_type="query", **options)
        assert np.array_equal(found, model.centres[:10])
        found = wrapped.encode(texts, prompt_type="document", **options)
        assert found.shape == (10, 48)
        assert not np.allclose(found, model.documents[:10], atol=0.01)
        if wrapped.codec is codec:
            expected = codec.reconstruct(codec.encode(model.documents[:10]))
            assert np.array_equal(found, expected)
