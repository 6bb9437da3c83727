"""mteb: an encoder with compressed documents, for scoring codes in benchmarks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.linfhash import LinfHash
from antipodal.integrations.sentence_transformers import quantize_embeddings


class CompressedEncoder:
    """A model whose documents are encoded and decoded: ``decode(encode(documents))``.

    Queries are returned unchanged, as in asymmetric search. Inputs without the type query, such as
    those of clustering and of symmetric similarity, are compressed.

    The codec is fitted to the first inputs of each task, split and subset, which mteb passes in
    chunks of 50,000 documents. Fewer than 1,000 are encoded by a random frame.

    Parameters
    ----------
    model : mteb.EncoderProtocol
        A model of mteb: it has `encode`, `similarity`, `similarity_pairwise`, `mteb_model_meta`.
    bytes : int
        Size of a code.
    codec : LinfHash, optional
        A fitted codec for all tasks.
    """

    def __init__(self, model: Any, bytes: int = 48, *, codec: LinfHash | None = None) -> None:
        self.model = model
        self.codec = codec
        self.bytes = bytes if codec is None else -(-codec.n_bits // 8)
        self._task: tuple[str, str, str] | None = None
        self._fitted: LinfHash | None = None

    @property
    def mteb_model_meta(self) -> Any:
        """Metadata with the code size: mteb caches the results of each setting separately."""
        meta = self.model.mteb_model_meta
        settings = {**(meta.experiment_kwargs or {}), "antipodal_bytes": self.bytes}
        return meta.model_copy(update={"experiment_kwargs": settings})

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> NDArray[np.float32]:
        """Return the vectors of queries, and the reconstructed vectors of other inputs."""
        encoded = self.model.encode(
            inputs, task_metadata=task_metadata, hf_split=hf_split, hf_subset=hf_subset,
            prompt_type=prompt_type, **kwargs,
        )  # fmt: skip
        rows: NDArray[np.float32] = np.asarray(
            encoded.float().cpu() if hasattr(encoded, "cpu") else encoded, np.float32
        )
        if prompt_type == "query" or not len(rows):
            return rows
        task = (str(task_metadata.name), hf_split, hf_subset)
        if task != self._task:
            self._task, self._fitted = task, self.codec
        codes, self._fitted = quantize_embeddings(rows, self.bytes, codec=self._fitted)
        return self._fitted.reconstruct(codes)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities of all pairs, as the model does."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities of corresponding rows, as the model does."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)
