"""Bags of visual words over SIFT descriptors. [Sivic2003, Lowe2004]"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from antipodal.errors import ModelFileError
from antipodal.features.images import ByteImage, Images, open_images, opencv, read_grey
from antipodal.io.model_file import read_model_file, write_model_file
from antipodal.validation import check_whole

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


_BATCH = 100  # descriptors a word in a step of learning: 51 kB a word
_MAX_ITER = 20  # of k-means on the first batch
_BLOCK_NUMBERS = 1 << 22  # products of descriptors and words at a time
_MAX_COUNT = np.iinfo(np.uint16).max

Progress = Callable[[int, int], object]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Visual words, and how images are described before their keypoints are counted as words.

    Parameters
    ----------
    words : array (n_words, 128)
        Kept as float32.
    root : bool
        The words are of root-SIFT descriptors, not of SIFT's own.
    max_keypoints : int
        Keypoints of an image that are counted, those of strongest contrast.
    size : int
        Pixels along each side of the square to which images are squashed.
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
                f"words must be (n_words, {WIDTH}), as wide as SIFT's descriptors, at least one: "
                f"got shape {words.shape}"
            )
        with np.errstate(over="ignore"):  # what overflows is named below
            words = words.astype(np.float32)  # a copy: the caller's may change
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
        """Read a vocabulary, or raise ModelFileError saying what is wrong with the file."""
        header, arrays = read_model_file(path, "vocabulary")
        names = {"root", "max_keypoints", "size"}
        if set(header) != names or set(arrays) != {"words"}:
            raise ModelFileError(
                f"{path} is not a vocabulary: it must hold words, {', '.join(sorted(names))}, and "
                f"holds {', '.join(sorted([*arrays, *header])) or 'nothing'}"
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
    """Learn words as centres of the images' SIFT descriptors. [Sivic2003, Lowe2004]

    Images are read once, in random order. The first 100 descriptors a word are clustered by
    k-means; each of the batches that follow, as large, moves a word to the mean of all
    descriptors that have fallen to it so far (mini-batch k-means [Sculley2010]). So the memory
    needed does not grow with the number of images.

    Parameters
    ----------
    images : path, sequence of paths, or uint8 array (m, h, w) or (m, h, w, 3)
        A folder, see `image_files`; files; or images themselves, grey or RGB. Turned to grey.
    n_words : int
        Size of the vocabulary.
    max_keypoints : int
        Keypoints of an image that are described, those of strongest contrast. Those tied with
        the last are described too.
    size : int
        Pixels along each side of the square to which images are squashed.
    root : bool
        Describe by root-SIFT, √(d / ‖d‖₁) of each descriptor d. [Arandjelovic2012]
    random_state : int, RandomState or None
        Of the order of the images and of the first centres. With the same seed the words are the
        same.
    progress : callable, optional
        Called as progress(done, total) after each image.

    Raises
    ------
    AntipodalError
        An image cannot be read, or OpenCV is not installed.
    ValueError
        The images have fewer different descriptors than words are wanted.
    """
    check_whole(n_words, "n_words", 1)
    _check_settings(root, max_keypoints, size)
    source = open_images(images)
    rng = check_random_state(random_state)
    n_images = len(source)

    def work(index: int) -> FloatArray:
        return describe(read_grey(source, index, size), max_keypoints, root)

    model, batch, n_waiting = None, list[FloatArray](), 0
    # Files often come class by class, and the first batch must be of all of them.
    order = rng.permutation(n_images).tolist()
    with ImageThreads() as threads:
        for done, descriptors in enumerate(threads.map(work, order), start=1):
            batch.append(descriptors)
            n_waiting += len(descriptors)
            if n_waiting >= _BATCH * n_words or (done == n_images and n_waiting > 0):
                model = _cluster(model, np.concatenate(batch), n_words, done, rng)
                batch, n_waiting = [], 0
            if progress is not None:
                progress(done, n_images)
    if model is None:
        raise _too_few(n_words, 0, n_images)
    return Vocabulary(model.cluster_centers_, bool(root), int(max_keypoints), int(size))


def bag_of_words(
    images: Images, vocabulary: Vocabulary, *, progress: Progress | None = None
) -> NDArray[np.uint16]:
    """Count the words in each image: the keypoints whose nearest word it is. [Sivic2003]

    Parameters
    ----------
    images : path, sequence of paths, or uint8 array (m, h, w) or (m, h, w, 3)
        As for `learn_vocabulary`. Read one at a time, a thread per image, on as many threads as
        PyTorch is set to.
    vocabulary : Vocabulary
        Its settings say how the images are described.
    progress : callable, optional
        Called as progress(done, total) after each image.

    Returns
    -------
    array (m, n_words), uint16
        A row per image: that of a folder in the order of `image_files`. An image without keypoints
        has a row of zeros. A row does not depend on the other images.

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
    >>> counts.shape, int(counts[1].sum())  # the second image is black all over
    ((2, 2), 0)
    """
    if not isinstance(vocabulary, Vocabulary):
        raise TypeError(
            "vocabulary must be a Vocabulary, by learn_vocabulary or Vocabulary.load: got "
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
    """Learn from a batch, and return the model; the first batch makes it."""
    from sklearn.cluster import KMeans, MiniBatchKMeans

    if model is None:
        n_different = len(set(map(bytes, X)))
        if n_different < n_words:
            raise _too_few(n_words, n_different, n_images)
        start = KMeans(n_words, n_init=1, max_iter=_MAX_ITER, random_state=rng).fit(X)
        # No word jumps later: k-means has left none without descriptors.
        model = MiniBatchKMeans(
            n_words, init=start.cluster_centers_, n_init=1, reassignment_ratio=0, random_state=rng
        )
    return model.partial_fit(X)


def _too_few(n_words: int, n_different: int, n_images: int) -> ValueError:
    return ValueError(
        f"n_words={n_words} needs at least as many different descriptors: {n_images} images have "
        f"{n_different}. Take more images or fewer words; images without detail have no keypoints"
    )


def _check_settings(root: object, max_keypoints: int, size: int) -> None:
    if not isinstance(root, (bool, np.bool_)):
        raise TypeError(f"root must be True or False: got {root!r}")
    check_whole(max_keypoints, "max_keypoints", 1)
    check_whole(size, "size", 1)
