"""Bags of visual words over SIFT descriptors. [Sivic2003, Lowe2004]"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from antipodal.errors import ModelFileError
from antipodal.features.images import ByteImage, Images, open_images, opencv, read_grey
from antipodal.io.model_file import read_model_file, write_model_file
from antipodal.threads import usable_cores
from antipodal.validation import check_random_state, check_whole

FloatArray = NDArray[np.float32]
Result = TypeVar("Result")

WIDTH = 128  # 4 × 4 cells around the keypoint, 8 directions each
_AHEAD = 4  # images per thread that are computed in advance


def describe(image: ByteImage, max_keypoints: int, root: bool) -> FloatArray:
    """Return the descriptors (n, 128) of the keypoints with the strongest contrast.

    Keypoints tied with the last one are also kept, so n may exceed max_keypoints: a point with
    two orientations is two keypoints of equal contrast. If `root`, each descriptor d is
    normalised to the unit sphere as root-SIFT, [Arandjelovic2012]

        d ← √(d / ‖d‖₁)

    whose squared Euclidean distances are 2 - 2 Σᵢ √(dᵢ d'ᵢ): they compare histograms.
    """
    sift = opencv().SIFT_create(nfeatures=max_keypoints)
    descriptors: FloatArray | None = sift.detectAndCompute(image, None)[1]
    if descriptors is None:  # no keypoints
        return np.empty((0, WIDTH), np.float32)
    if root:
        sums = descriptors.sum(axis=1, keepdims=True)
        np.sqrt(descriptors / np.maximum(sums, 1), out=descriptors)  # d: integers up to 255
    return descriptors


class ImageThreads:
    """Thread pool for a map over images, one image per thread and usable core.

    Inside its `with` block, OpenCV and the numerical libraries use the calling thread only:
    synchronising threads within an image is slow if other programs use the cores as well.
    """

    def __init__(self) -> None:
        self._cv2 = opencv()

    def __enter__(self) -> Self:
        self._n_threads = usable_cores()
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
        """Yield the results in order; only a few are computed in advance."""
        ahead: deque[Future[Result]] = deque()
        for index in indices:
            ahead.append(self._pool.submit(work, index))
            if len(ahead) == _AHEAD * self._n_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


_BATCH = 100  # descriptors per word in a training step: 51 kB per word
_MAX_ITER = 20  # iterations of k-means on the first batch
_BLOCK_NUMBERS = 1 << 22  # products of descriptors and words at a time
_MAX_COUNT = np.iinfo(np.uint16).max

Progress = Callable[[int, int], object]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Visual words, and the parameters of the descriptors that they quantise.

    Parameters
    ----------
    words : array (n_words, 128)
        Converted to float32.
    root : bool
        Whether the words quantise root-SIFT descriptors rather than SIFT descriptors.
    max_keypoints : int
        Number of keypoints per image; those with the strongest contrast are kept.
    size : int
        Side of the square, in pixels, to which images are resized.
    """

    words: FloatArray
    root: bool = True
    max_keypoints: int = 400
    size: int = 256

    def __post_init__(self) -> None:
        words = np.asarray(self.words)
        if words.dtype.kind not in "fiu":
            raise TypeError(f"words must be real numbers: got {words.dtype}")
        if words.ndim != 2 or words.shape[1] != WIDTH or len(words) == 0:
            raise ValueError(
                f"words must be (n_words, {WIDTH}), the length of SIFT descriptors, and not empty: "
                f"got shape {words.shape}"
            )
        with np.errstate(over="ignore"):  # overflow is reported below
            words = words.astype(np.float32)  # a copy, which the caller cannot change
        if not np.isfinite(words).all():
            bad = int(np.flatnonzero(~np.isfinite(words).all(axis=1))[0])
            raise ValueError(f"words must be finite: word {bad} is not")
        _check_settings(self.root, self.max_keypoints, self.size)
        words.flags.writeable = False
        object.__setattr__(self, "words", words)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary to one file, without pickle."""
        header = {
            "root": self.root,
            "max_keypoints": int(self.max_keypoints),
            "size": int(self.size),
        }
        write_model_file(path, "vocabulary", header, {"words": self.words})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a vocabulary; raise ModelFileError if the file is damaged or of another kind."""
        header, arrays = read_model_file(path, "vocabulary")
        names = {"root", "max_keypoints", "size"}
        if set(header) != names or set(arrays) != {"words"}:
            raise ModelFileError(
                f"{path} is not a vocabulary: it must contain words, {', '.join(sorted(names))}, "
                f"but contains {', '.join(sorted([*arrays, *header])) or 'nothing'}"
            )
        try:
            return cls(arrays["words"], **header)
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{path} is not a vocabulary: {error}") from error


def learn_vocabulary(
    images: Images,
    *,
    n_words: int = 500,
    max_keypoints: int = 400,
    size: int = 256,
    root: bool = True,
    random_state: Any = None,
    progress: Progress | None = None,
) -> Vocabulary:
    """Learn visual words as cluster centres of SIFT descriptors. [Sivic2003, Lowe2004]

    Images are read once, in random order. The first 100 descriptors per word are clustered by
    k-means. Each following batch of the same size moves a word to the mean of all descriptors
    assigned to it so far (mini-batch k-means [Sculley2010]). The memory required does not depend
    on the number of images.

    Parameters
    ----------
    images : path, sequence of paths, or uint8 array (m, h, w) or (m, h, w, 3)
        A folder, see `image_files`; files; or an array of grey or RGB images. They are converted
        to grey.
    n_words : int
        Size of the vocabulary.
    max_keypoints : int
        Number of keypoints per image, those of strongest contrast, and ties with the last one.
    size : int
        Side of the square, in pixels, to which images are resized.
    root : bool
        Use root-SIFT, √(d / ‖d‖₁) of each descriptor d. [Arandjelovic2012]
    random_state : int, RandomState or None
        Determines the order of the images and the initial centres. Pass an int for reproducible
        words.
    progress : callable, optional
        Called as progress(done, total) after each image.

    Raises
    ------
    AntipodalError
        An image cannot be read, or OpenCV is not installed.
    ValueError
        The images have fewer distinct descriptors than `n_words`.
    """
    check_whole(n_words, "n_words", 1)
    _check_settings(root, max_keypoints, size)
    source = open_images(images)
    rng = check_random_state(random_state)
    n_images = len(source)

    def work(index: int) -> FloatArray:
        return describe(read_grey(source, index, size), max_keypoints, root)

    model, batch, n_batched = None, list[FloatArray](), 0
    # Files are often sorted by class, and the first batch must contain all classes.
    order = rng.permutation(n_images).tolist()
    with ImageThreads() as threads:
        for done, descriptors in enumerate(threads.map(work, order), start=1):
            batch.append(descriptors)
            n_batched += len(descriptors)
            if n_batched >= _BATCH * n_words or (done == n_images and n_batched > 0):
                model = _cluster(model, np.concatenate(batch), n_words, done, rng)
                batch, n_batched = [], 0
            if progress is not None:
                progress(done, n_images)
    if model is None:
        raise _too_few(n_words, 0, n_images)
    return Vocabulary(model.cluster_centers_, bool(root), int(max_keypoints), int(size))


def bag_of_words(
    images: Images, vocabulary: Vocabulary, *, progress: Progress | None = None
) -> NDArray[np.uint16]:
    """Count the keypoints of each image by their nearest visual word. [Sivic2003]

    Parameters
    ----------
    images : path, sequence of paths, or uint8 array (m, h, w) or (m, h, w, 3)
        As for `learn_vocabulary`. Processed one image per thread, on the usable cores.
    vocabulary : Vocabulary
        The words, and the parameters of the descriptors.
    progress : callable, optional
        Called as progress(done, total) after each image.

    Returns
    -------
    array (m, n_words), uint16
        One row per image; for a folder, in the order of `image_files`. An image without keypoints
        has a row of zeros. Rows do not depend on the other images.

    Raises
    ------
    AntipodalError
        An image cannot be read, or OpenCV is not installed.

    Examples
    --------
    >>> squares = np.zeros((2, 64, 64), np.uint8)
    >>> squares[0, 20:40, 20:40] = 255
    >>> vocabulary = learn_vocabulary(squares, n_words=2, random_state=0)
    >>> counts = bag_of_words(squares, vocabulary)
    >>> counts.shape, int(counts[1].sum())  # the second image is black
    ((2, 2), 0)
    """
    if not isinstance(vocabulary, Vocabulary):
        raise TypeError(
            "vocabulary must be a Vocabulary, from learn_vocabulary or Vocabulary.load: got "
            f"{type(vocabulary).__name__}"
        )
    source = open_images(images)
    W = vocabulary.words

    def work(index: int) -> NDArray[np.intp]:
        grey = read_grey(source, index, vocabulary.size)
        descriptors = describe(grey, vocabulary.max_keypoints, vocabulary.root)
        return np.bincount(_nearest(descriptors, W), minlength=len(W))

    counts = np.empty((len(source), len(W)), np.uint16)
    with ImageThreads() as threads:
        for row, count in enumerate(threads.map(work, range(len(source)))):
            counts[row] = np.minimum(count, _MAX_COUNT)  # ties may exceed max_keypoints
            if progress is not None:
                progress(row + 1, len(source))
    return counts


def _nearest(X: FloatArray, W: FloatArray) -> NDArray[np.intp]:
    """argmin_w ‖x - w‖² = argmax_w xᵀw - ‖w‖²/2, for each row x of X."""
    half = (W * W).sum(axis=1) / 2
    block = max(1, _BLOCK_NUMBERS // len(W))
    nearest = np.empty(len(X), np.intp)
    for start in range(0, len(X), block):
        nearest[start : start + block] = (X[start : start + block] @ W.T - half).argmax(axis=1)
    return nearest


def _cluster(model: Any, X: FloatArray, n_words: int, n_images: int, rng: Any) -> Any:
    """Update the model with a batch, and return it; the first batch creates it."""
    from sklearn.cluster import KMeans, MiniBatchKMeans

    if model is None:
        n_distinct = len(set(map(bytes, X)))
        if n_distinct < n_words:
            raise _too_few(n_words, n_distinct, n_images)
        start = KMeans(n_words, n_init=1, max_iter=_MAX_ITER, random_state=rng).fit(X)
        # No reassignment is needed: after k-means every word has descriptors.
        model = MiniBatchKMeans(
            n_words, init=start.cluster_centers_, n_init=1, reassignment_ratio=0, random_state=rng
        )
    return model.partial_fit(X)


def _too_few(n_words: int, n_distinct: int, n_images: int) -> ValueError:
    return ValueError(
        f"n_words={n_words} requires at least {n_words} distinct descriptors: {n_images} images "
        f"have {n_distinct}. Use more images or fewer words; images without detail have no "
        "keypoints"
    )


def _check_settings(root: object, max_keypoints: int, size: int) -> None:
    if not isinstance(root, (bool, np.bool_)):
        raise TypeError(f"root must be True or False: got {root!r}")
    check_whole(max_keypoints, "max_keypoints", 1)
    check_whole(size, "size", 1)
