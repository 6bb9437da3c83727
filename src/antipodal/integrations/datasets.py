"""Hugging Face datasets: codes of a column of embeddings."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from antipodal.codes import Codes
from antipodal.hashers.base import BaseHasher


def encode_column(
    codec: BaseHasher, column: str = "embedding", output: str = "code"
) -> Callable[[Mapping[str, Any]], dict[str, Codes]]:
    """Return a function for ``Dataset.map(…, batched=True)`` that adds a column of codes.

    Parameters
    ----------
    codec : BaseHasher
        A fitted hasher, such as the codec of
        `antipodal.integrations.sentence_transformers.quantize_embeddings`.
    column, output : str
        Names of the column of embeddings and of that of codes.

    Examples
    --------
    >>> from antipodal import LSH
    >>> batch = {"embedding": [[1.0, 2.0], [-1.0, 0.5], [0.0, -1.0]]}
    >>> encode_column(LSH(16, random_state=0).fit(batch["embedding"]))(batch)["code"].shape
    (3, 2)
    """
    return partial(_encoded, codec=codec, column=column, output=output)


def _encoded(
    batch: Mapping[str, Any], codec: BaseHasher, column: str, output: str
) -> dict[str, Codes]:
    return {output: codec.encode(np.asarray(batch[column], np.float32))}
