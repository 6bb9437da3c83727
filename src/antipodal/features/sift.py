"""SIFT: what surrounds each conspicuous point of an image, as 128 numbers. [Lowe2004]"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from antipodal.features.images import ByteImage, opencv

FloatArray = NDArray[np.float32]
Result = TypeVar("Result")

WIDTH = 128  # 4 × 4 cells around the keypoint, 8 directions each
_AHEAD = 4  # images per thread that are under way or wait to be taken


def describe(image: ByteImage, max_keypoints: int, root: bool) -> FloatArray:
    """Return the descriptors (n, 128) of the keypoints with the strongest contrast.

    A keypoint tied with the last one is kept too: a point with two directions is two keypoints of
    the same contrast, and n may exceed max_keypoints by as many. If `root`, each descriptor d is
    put on the unit sphere as root-SIFT, [Arandjelovic2012]

        d ← √(d / ‖d‖₁)

    whose squared Euclidean distances are 2 - 2 Σᵢ √(dᵢ d'ᵢ): they compare histograms.
    """
    sift = opencv().SIFT_create(nfeatures=max_keypoints)
    descriptors: FloatArray | None = sift.detectAndCompute(image, None)[1]
    if descriptors is None:  # no keypoints
        return np.empty((0, WIDTH), np.float32)
    if root:
        sums = descriptors.sum(axis=1, keepdims=True)
        np.sqrt(descriptors / np.maximum(sums, 1), out=descriptors)  # d: whole numbers up to 255
    return descriptors


class ImageThreads:
    """Threads for a map over images: as many as PyTorch is set to, an image per thread.

    Inside its `with` block, OpenCV and the numerical libraries keep to the thread that calls
    them: threads that wait for each other within an image cost much where other programs want
    the cores as well.
    """

    def __init__(self) -> None:
        self._cv2 = opencv()

    def __enter__(self) -> Self:
        self._n_threads = torch.get_num_threads()
        self._n_opencv = self._cv2.getNumThreads()
        self._cv2.setNumThreads(1)
        self._limits = threadpool_limits(1)
        self._pool = ThreadPoolExecutor(self._n_threads)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._limits.restore_original_limits()
        self._cv2.setNumThreads(self._n_opencv)

    def map(self, work: Callable[[int], Result], indices: Iterable[int]) -> Iterator[Result]:
        """Yield each result in its turn; only a few are computed ahead of the one taken."""
        ahead: deque[Future[Result]] = deque()
        for index in indices:
            ahead.append(self._pool.submit(work, index))
            if len(ahead) == _AHEAD * self._n_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
