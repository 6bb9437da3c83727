"""Bags of words compared with a loop over OpenCV's descriptors, and their invariances."""

import itertools
import sys
import tracemalloc
from importlib.util import find_spec, module_from_spec

import cv2
import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

from antipodal.errors import AntipodalError, ModelFileError
from antipodal.features import Vocabulary, bag_of_words, image_files, learn_vocabulary, words
from antipodal.features.words import ImageThreads
from antipodal.io.model_file import write_model_file
from antipodal.threads import usable_cores

SIZE = 96


def scenes(n, height=SIZE, width=SIZE, seed=0):
    """Return blurred colour images of random discs and boxes, with many keypoints."""
    rng = np.random.default_rng(seed)
    images = np.empty((n, height, width, 3), np.uint8)
    for image in images:
        canvas = np.full((height, width, 3), 128, np.uint8)
        for _ in range(40):
            x, y, r = (int(v) for v in rng.integers((0, 0, 2), (width, height, 12)))
            colour = rng.integers(0, 256, 3).tolist()
            if rng.random() < 0.5:
                cv2.circle(canvas, (x, y), r, colour, -1)
            else:
                cv2.rectangle(canvas, (x, y), (x + r, y + 2 * r), colour, -1)
        image[:] = cv2.GaussianBlur(canvas, (0, 0), 0.8)
    return images


def opencv_descriptors(rgb, max_keypoints, root):
    """Return the descriptors of an image of the final size, in double precision."""
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    found = cv2.SIFT_create(max_keypoints).detectAndCompute(grey, None)[1].astype(np.float64)
    return np.array([np.sqrt(d / np.abs(d).sum()) for d in found]) if root else found


def loop_over_words(rgb, vocabulary):
    """Count in a loop; check that no descriptor is equally near to two words."""
    row = np.zeros(len(vocabulary.words), int)
    descriptors = opencv_descriptors(rgb, vocabulary.max_keypoints, vocabulary.root)
    for distances in cdist(descriptors, vocabulary.words.astype(np.float64)):
        first, second = np.partition(distances, 1)[:2]
        assert second - first > 1e-6 * second
        row[distances.argmin()] += 1
    return row


@pytest.fixture(scope="module")
def images():
    return scenes(12)


@pytest.fixture(scope="module")
def vocabulary(images):
    return learn_vocabulary(images, n_words=20, size=SIZE, random_state=0)


def test_counts_match_a_loop_over_all_words(images, vocabulary):
    expected = np.array([loop_over_words(image, vocabulary) for image in images])
    counts = bag_of_words(images, vocabulary)
    np.testing.assert_array_equal(counts, expected)
    assert counts.dtype == np.uint16
    assert (counts > 0).any(axis=0).all()  # every word occurs
    assert len(np.unique(counts, axis=0)) == len(images)


@pytest.mark.parametrize("root", [True, False])
def test_custom_words_are_counted_like_learnt_ones(images, root):
    rng = np.random.default_rng(1)
    everything = np.concatenate([opencv_descriptors(image, 30, root) for image in images])
    chosen = everything[rng.choice(len(everything), 50, replace=False)]
    own = Vocabulary(chosen * 1.01, root=root, max_keypoints=30, size=SIZE)
    expected = [loop_over_words(image, own) for image in images]
    np.testing.assert_array_equal(bag_of_words(images, own), expected)


def test_counts_do_not_depend_on_the_block_size(images, vocabulary, monkeypatch):
    expected = bag_of_words(images, vocabulary)
    monkeypatch.setattr(words, "_BLOCK_NUMBERS", 7 * len(vocabulary.words))
    np.testing.assert_array_equal(bag_of_words(images, vocabulary), expected)


def test_each_keypoint_counts_once(images, vocabulary):
    for max_keypoints in (5, 400):
        sift = cv2.SIFT_create(max_keypoints)
        n_keypoints = [len(sift.detect(cv2.cvtColor(i, cv2.COLOR_RGB2GRAY))) for i in images]
        asked = Vocabulary(vocabulary.words, max_keypoints=max_keypoints, size=SIZE)
        np.testing.assert_array_equal(bag_of_words(images, asked).sum(axis=1), n_keypoints)


def test_an_image_without_keypoints_has_a_row_of_zeros(images, vocabulary):
    mixed = np.stack([images[0], np.full_like(images[0], 77), images[1]])
    counts = bag_of_words(mixed, vocabulary)
    np.testing.assert_array_equal(counts.any(axis=1), [True, False, True])


def test_permuted_images_have_permuted_rows(images, vocabulary):
    order = np.random.default_rng(2).permutation(len(images))
    counts = bag_of_words(images, vocabulary)
    np.testing.assert_array_equal(bag_of_words(images[order], vocabulary), counts[order])
    np.testing.assert_array_equal(bag_of_words(images[3:4], vocabulary), counts[3:4])


def test_images_are_converted_to_grey_and_resized(images, vocabulary):
    expected = bag_of_words(images, vocabulary)
    grey = np.stack([cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in images])
    np.testing.assert_array_equal(bag_of_words(grey, vocabulary), expected)
    # Each pixel is the mean of six pixels, with different values each time.
    inner = grey.clip(40, 215)
    spread = np.random.default_rng(0).integers(0, 40, grey.shape)[..., None, None]
    cells = inner[..., None, None] + spread * np.array([[1, -1, 0], [0, -1, 1]])  # (m, h, w, 2, 3)
    larger = cells.swapaxes(2, 3).reshape(len(grey), 2 * SIZE, 3 * SIZE).astype(np.uint8)
    np.testing.assert_array_equal(bag_of_words(larger, vocabulary), bag_of_words(inner, vocabulary))
    small = grey[:, ::2]
    upright = np.stack([cv2.resize(g, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR) for g in small])
    np.testing.assert_array_equal(
        bag_of_words(small.repeat(2, axis=2), vocabulary), bag_of_words(upright, vocabulary)
    )
    assert np.any(bag_of_words(upright, vocabulary) != expected)


def test_images_need_not_be_contiguous_or_writeable(images, vocabulary):
    expected = bag_of_words(images, vocabulary)
    turned = np.ascontiguousarray(images.transpose(0, 3, 2, 1)).transpose(0, 3, 2, 1)
    turned.flags.writeable = False  # like a memory map
    np.testing.assert_array_equal(bag_of_words(turned, vocabulary), expected)


def test_counts_are_clipped_at_the_largest_uint16(images, vocabulary, monkeypatch):
    full = bag_of_words(images, vocabulary)
    assert full.max() > 3
    monkeypatch.setattr(words, "_MAX_COUNT", 3)
    np.testing.assert_array_equal(bag_of_words(images, vocabulary), np.minimum(full, 3))


# Files


@pytest.fixture
def folder(images, tmp_path):
    """Write the images to files whose order is that of the array."""
    names = ["A/b.PNG", "A/c/a.bmp", "A/c/b.tif", "A/d.tiff", "B.png", "a.png", "a1.webp"]
    names += [f"b{i}.png" for i in range(len(images) - len(names))]
    for name, image in zip(names, images, strict=True):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        options = [cv2.IMWRITE_WEBP_QUALITY, 101] if name.endswith("webp") else []  # lossless
        encoded = cv2.imencode(path.suffix, image[..., ::-1], options)[1]
        path.write_bytes(encoded.tobytes())
    (tmp_path / "A" / "labels.csv").write_text("b,1")
    (tmp_path / ".hidden.png").write_text("not an image")
    return tmp_path, names


def test_files_have_the_rows_of_the_array(folder, images, vocabulary):
    path, names = folder
    expected = bag_of_words(images, vocabulary)
    files = image_files(path)
    assert [file.relative_to(path).as_posix() for file in files] == names
    np.testing.assert_array_equal(bag_of_words(path, vocabulary), expected)
    np.testing.assert_array_equal(bag_of_words(str(path), vocabulary), expected)
    chosen = (str(files[4]), files[0])
    np.testing.assert_array_equal(bag_of_words(chosen, vocabulary), expected[[4, 0]])


def test_words_learnt_from_files_equal_those_of_the_array(folder, images, vocabulary):
    ours = learn_vocabulary(folder[0], n_words=20, size=SIZE, random_state=0)
    np.testing.assert_array_equal(ours.words, vocabulary.words)


def test_a_jpeg_file_is_read_and_its_grey_is_close(images, vocabulary, tmp_path):
    path = tmp_path / "photo.JPEG"
    cv2.imwrite(str(path), images[0][..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 100])
    exact, ours = bag_of_words(images[:1], vocabulary), bag_of_words([path], vocabulary)
    assert np.abs(exact.astype(int) - ours).sum() < 0.25 * exact.sum()


def with_thumbnail(jpeg):
    """Return a JPEG file with a complete JPEG thumbnail in a segment."""
    payload = b"Exif\0\0" + jpeg
    segment = b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload
    return jpeg[:2] + segment + b"\xff" + jpeg[2:]  # with a byte of padding, which is allowed


@pytest.mark.parametrize("extension", ["jpg", "png", "bmp", "webp", "tif"])
def test_a_truncated_image_is_named(images, vocabulary, tmp_path, extension):
    whole = cv2.imencode(f".{extension}", images[0])[1].tobytes()
    whole = with_thumbnail(whole) if extension == "jpg" else whole
    path = tmp_path / f"photo.{extension}"
    path.write_bytes(whole)
    assert bag_of_words(tmp_path, vocabulary).any()
    for kept in (len(whole) - 1, len(whole) * 9 // 10, len(whole) * 2 // 3, 12, 3, 0):
        path.write_bytes(whole[:kept])
        with pytest.raises(AntipodalError, match=rf"photo\.{extension}"):
            bag_of_words(tmp_path, vocabulary)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "it is empty"), (b"<html>404</html>", "not an image"), (None, "No such file")],
)
def test_a_file_that_is_not_an_image_is_named(folder, vocabulary, content, message):
    path, _ = folder
    bad = path / "z.jpg"
    if content is not None:
        bad.write_bytes(content)
    files = [*image_files(path), bad][-4:]
    with pytest.raises(AntipodalError, match=rf"z\.jpg.*{message}"):
        bag_of_words(files, vocabulary)
    with pytest.raises(AntipodalError, match=rf"z\.jpg.*{message}"):
        learn_vocabulary(files, n_words=2)


def test_an_image_larger_than_the_limit_of_opencv_is_named(vocabulary, tmp_path):
    header = b"BM" + bytes(8) + (54).to_bytes(4, "little") + (40).to_bytes(4, "little")
    header += (1 << 20).to_bytes(4, "little") * 2 + b"\1\0\x18\0" + bytes(24)
    (tmp_path / "vast.bmp").write_bytes(header)
    with pytest.raises(AntipodalError, match=r"vast\.bmp"):
        bag_of_words(tmp_path, vocabulary)


def test_a_missing_folder_or_one_without_images_is_refused(vocabulary, tmp_path):
    (tmp_path / "notes.txt").write_text("nothing to see")
    with pytest.raises(AntipodalError, match=r"images.*\.bmp.*\.jpeg"):
        bag_of_words(tmp_path, vocabulary)
    with pytest.raises(AntipodalError, match=r"absent.*No such file"):
        image_files(tmp_path / "absent")
    with pytest.raises(AntipodalError, match=r"notes\.txt.*Not a directory"):
        bag_of_words(tmp_path / "notes.txt", vocabulary)


# The vocabulary


def mean_distance(descriptors, centres):
    return (cdist(descriptors, centres).min(axis=1) ** 2).mean()


@pytest.mark.parametrize("batch", [100, 3])  # one batch, about ten batches
def test_words_are_almost_as_good_as_those_of_k_means(images, monkeypatch, batch):
    monkeypatch.setattr(words, "_BATCH", batch)
    descriptors = np.concatenate([opencv_descriptors(image, 400, True) for image in images])
    ours = learn_vocabulary(images, n_words=20, size=SIZE, random_state=0).words
    best = KMeans(20, n_init=5, random_state=0).fit(descriptors).cluster_centers_
    rng = np.random.default_rng(0)
    picked = descriptors[rng.choice(len(descriptors), 20, replace=False)]
    bound = 1.03 if batch == 100 else 1.08
    assert mean_distance(descriptors, ours) < bound * mean_distance(descriptors, best)
    assert mean_distance(descriptors, picked) > 1.2 * mean_distance(descriptors, best)


def test_every_batch_contributes(images, monkeypatch):
    """A single word is the mean of all descriptors, for any number of batches."""
    descriptors = np.concatenate([opencv_descriptors(image, 400, True) for image in images])
    for batch in (100, len(descriptors) // 5, 10**6):
        monkeypatch.setattr(words, "_BATCH", batch)
        word = learn_vocabulary(images, n_words=1, size=SIZE, random_state=0).words[0]
        np.testing.assert_allclose(word, descriptors.mean(axis=0), atol=1e-5)


@pytest.fixture(scope="module")
def textures():
    """Return six images of dots, then six of bricks."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:SIZE, :SIZE]
    dots, bricks = [], []
    for _ in range(6):
        dy, dx = rng.integers(0, 16, 2)
        dots.append(127 + 100 * np.cos((x + dx) / 2.5) * np.cos((y + dy) / 2.5))
        bricks.append(255.0 * (((x + dx) // 16 + (y + dy) // 8) % 2))
    noise = rng.normal(0, 2, (12, SIZE, SIZE))
    return (np.array(dots + bricks) + noise).clip(0, 255).astype(np.uint8)


def test_distinct_textures_have_distinct_words(textures):
    vocabulary = learn_vocabulary(textures[::2], n_words=8, size=SIZE, random_state=0)
    counts = bag_of_words(textures[1::2], vocabulary).astype(float)
    profiles = counts / counts.sum(axis=1, keepdims=True)
    shared = np.minimum(profiles[:, None], profiles[None]).sum(axis=2)
    is_same = np.arange(6)[:, None] // 3 == np.arange(6) // 3
    assert shared[is_same].min() > 0.7
    assert shared[~is_same].max() < 0.3


def test_images_sorted_by_class_have_words_for_every_class(textures, monkeypatch):
    colour = textures[..., None].repeat(3, axis=3)
    descriptors = [opencv_descriptors(image, 60, True) for image in colour]
    dots, bricks = np.concatenate(descriptors[:6]), np.concatenate(descriptors[6:])
    monkeypatch.setattr(words, "_BATCH", (len(dots) + len(bricks)) // 2 // 8)
    learnt = learn_vocabulary(textures, n_words=8, max_keypoints=60, size=SIZE, random_state=0)
    best = KMeans(8, n_init=5, random_state=0).fit(np.concatenate([dots, bricks]))
    assert mean_distance(bricks, learnt.words) < 1.5 * mean_distance(bricks, best.cluster_centers_)


def test_words_depend_on_the_seed_but_not_on_threads(images, vocabulary, monkeypatch):
    for n in (1, 3):
        monkeypatch.setenv("OMP_NUM_THREADS", str(n))
        again = learn_vocabulary(images, n_words=20, size=SIZE, random_state=0)
        np.testing.assert_array_equal(again.words, vocabulary.words)
        np.testing.assert_array_equal(bag_of_words(images, again), bag_of_words(images, vocabulary))
    other = learn_vocabulary(images, n_words=20, size=SIZE, random_state=1)
    assert np.any(other.words != vocabulary.words)


def test_the_vocabulary_keeps_its_parameters(images):
    learnt = learn_vocabulary(
        images, n_words=3, max_keypoints=20, size=64, root=False, random_state=0
    )
    assert (learnt.root, learnt.max_keypoints, learnt.size) == (False, 20, 64)
    assert learnt.words.shape == (3, 128)
    assert learnt.words.dtype == np.float32
    assert learnt.words.max() > 10  # SIFT values, up to 255
    with pytest.raises(ValueError, match="read-only"):
        learnt.words[0] = 0


def test_the_defaults_are_the_usual_ones():
    usual = Vocabulary(np.ones((2, 128)))
    assert (usual.root, usual.max_keypoints, usual.size) == (True, 400, 256)


def test_memory_does_not_depend_on_the_number_of_images(vocabulary, monkeypatch):
    monkeypatch.setattr(words, "_BATCH", 5)
    few = scenes(8, seed=3)
    many = np.tile(few, (8, 1, 1, 1))

    def peak(function):
        tracemalloc.start()
        function()
        largest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return largest

    def learn(images):
        learn_vocabulary(images, n_words=20, size=SIZE, random_state=0)

    learn(few)  # warm up: imports
    descriptors = int(bag_of_words(many, vocabulary).sum()) * 128 * 4
    assert peak(lambda: learn(many)) < peak(lambda: learn(few)) + descriptors / 20
    rows = [peak(lambda x=x: bag_of_words(x, vocabulary)) for x in (few, many)]
    assert rows[1] < rows[0] + descriptors / 20


def test_only_a_few_images_are_read_in_advance():
    started = []
    with ImageThreads() as threads:
        endless = threads.map(lambda i: started.append(i) or -i, itertools.count())
        assert list(itertools.islice(endless, 50)) == [-i for i in range(50)]
    assert len(started) < 50 + 5 * usable_cores()


def test_the_thread_settings_of_opencv_are_restored(images, vocabulary, tmp_path):
    (tmp_path / "bad.png").write_text("no")
    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    inside = []
    try:
        bag_of_words(images, vocabulary, progress=lambda *_: inside.append(cv2.getNumThreads()))
        assert (set(inside), cv2.getNumThreads()) == ({1}, 3)
        with pytest.raises(AntipodalError):
            bag_of_words(tmp_path, vocabulary)
        assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)


def test_progress_is_reported_after_each_image(images, vocabulary):
    expected = [(i + 1, len(images)) for i in range(len(images))]
    for describe in (
        lambda told: bag_of_words(images, vocabulary, progress=told),
        lambda told: learn_vocabulary(images, n_words=2, size=SIZE, progress=told),
    ):
        calls = []
        describe(lambda done, total, calls=calls: calls.append((done, total)))
        assert calls == expected


# Vocabulary files


def test_a_saved_vocabulary_is_restored(images, vocabulary, tmp_path):
    path = tmp_path / "words.antipodal"
    for saved in (vocabulary, Vocabulary(vocabulary.words * 9, False, np.int64(7), np.int64(50))):
        saved.save(path)
        read = Vocabulary.load(path)
        np.testing.assert_array_equal(read.words, saved.words)
        assert (read.root, read.max_keypoints, read.size) == (
            saved.root,
            saved.max_keypoints,
            saved.size,
        )
        np.testing.assert_array_equal(bag_of_words(images, read), bag_of_words(images, saved))


def test_a_damaged_file_is_refused(vocabulary, tmp_path):
    path = tmp_path / "words.antipodal"
    vocabulary.save(path)
    data = path.read_bytes()
    for kept in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:kept])
        with pytest.raises(ModelFileError):
            Vocabulary.load(path)
    for at in (3, 60, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ModelFileError):
            Vocabulary.load(path)


SETTINGS = {"root": True, "max_keypoints": 400, "size": 256}
WORDS = np.ones((2, 128), np.float32)


@pytest.mark.parametrize(
    ("kind", "header", "arrays", "message"),
    [
        ("hasher", SETTINGS, {"words": WORDS}, "hasher.*vocabulary"),
        ("vocabulary", SETTINGS, {}, "words, max_keypoints, root, size"),
        ("vocabulary", SETTINGS, {"words": WORDS, "idf": WORDS}, r"\bidf\b"),
        ("vocabulary", {"root": True}, {"words": WORDS}, r"\broot, words\b"),
        ("vocabulary", SETTINGS, {"words": WORDS[:, :64]}, r"\(2, 64\)"),
        ("vocabulary", SETTINGS, {"words": WORDS[0]}, r"\(128,\)"),
        ("vocabulary", SETTINGS, {"words": WORDS * np.nan}, r"\bword 0\b"),
        ("vocabulary", SETTINGS, {"words": WORDS > 0}, r"\bbool\b"),
        ("vocabulary", SETTINGS | {"size": 0}, {"words": WORDS}, r"\bsize\b.*\b1\b.*\b0\b"),
        ("vocabulary", SETTINGS | {"size": "256"}, {"words": WORDS}, r"\bsize\b.*'256'"),
        ("vocabulary", SETTINGS | {"root": 1}, {"words": WORDS}, r"\broot\b.*\b1\b"),
    ],
)
def test_an_intact_file_without_a_vocabulary_is_refused(tmp_path, kind, header, arrays, message):
    path = tmp_path / "words.antipodal"
    write_model_file(path, kind, header, arrays)
    with pytest.raises(ModelFileError, match=message):
        Vocabulary.load(path)


# Invalid arguments

GREY = np.zeros((3, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (GREY[:0], ValueError, r"\(0, 8, 8\)"),
        (GREY[0], ValueError, r"\(8, 8\).*images\[None\]"),
        (np.zeros((2, 3, 8, 8), np.uint8), ValueError, r"\(2, 3, 8, 8\)"),
        (np.zeros((2, 8, 8, 4), np.uint8), ValueError, r"\(2, 8, 8, 4\)"),
        (GREY.astype(np.float32), TypeError, r"\buint8\b.*\b0\b.*\b255\b.*\bfloat32\b"),
        (np.full((1, 8, 8), np.nan), TypeError, r"\buint8\b.*\b0\b.*\b255\b.*\bfloat64\b"),
        (GREY > 0, TypeError, r"\bbool\b"),
        (np.array(["a.png"]), TypeError, r"<U5.*\blist\b"),
        ([], ValueError, "empty"),
        (list(GREY), TypeError, r"\bndarray\b.*np\.stack"),
        (["a.png", None], TypeError, "NoneType"),
        (b"photos", TypeError, r"\bbytes\b"),
        (None, TypeError, "NoneType"),
        (iter(["a.png"]), TypeError, "list_iterator"),
    ],
)
def test_invalid_images_are_refused(vocabulary, wrong, error, message):
    with pytest.raises(error, match=message):
        bag_of_words(wrong, vocabulary)
    with pytest.raises(error, match=message):
        learn_vocabulary(wrong)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_words": 0}, ValueError, r"\bn_words\b.*\b1\b.*\b0\b"),
        ({"n_words": 2.0}, TypeError, r"\bn_words\b.*\b2\.0"),
        ({"max_keypoints": 0}, ValueError, r"\bmax_keypoints\b.*\b1\b.*\b0\b"),
        ({"max_keypoints": None}, TypeError, r"\bmax_keypoints\b.*\bNone\b"),
        ({"size": 0}, ValueError, r"\bsize\b.*\b1\b.*\b0\b"),
        ({"root": "yes"}, TypeError, r"\broot\b.*'yes'"),
        ({"random_state": "seed"}, ValueError, "seed"),
    ],
)
def test_invalid_options_are_refused(images, options, error, message):
    with pytest.raises(error, match=message):
        learn_vocabulary(images, **options)


def test_fewer_descriptors_than_words_are_refused(images):
    found = len(np.unique(opencv_descriptors(images[0], 400, True), axis=0))
    twice = images[[0, 0]]
    with pytest.raises(ValueError, match=rf"n_words=500\b.*\b2 images\b.*\b{found}\b"):
        learn_vocabulary(twice, size=SIZE)
    with pytest.raises(ValueError, match=r"n_words=1\b.*\b3 images\b.*\b0\b"):
        learn_vocabulary(GREY, n_words=1)
    assert len(learn_vocabulary(twice, n_words=found, size=SIZE, random_state=0).words) == found


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (np.ones((5, 64)), ValueError, r"\(n_words, 128\).*\(5, 64\)"),
        (np.ones((0, 128)), ValueError, r"\(0, 128\)"),
        (
            np.where(np.arange(3)[:, None] == 1, np.inf, np.ones((3, 128))),
            ValueError,
            r"\bword 1\b",
        ),
        (np.full((1, 128), 1e300), ValueError, r"\bword 0\b"),
        (np.full((1, 128), "a"), TypeError, "<U1"),
    ],
)
def test_invalid_words_are_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        Vocabulary(wrong)


def test_an_array_of_words_is_not_a_vocabulary(images, vocabulary):
    with pytest.raises(TypeError, match=r"\bVocabulary\b.*\bndarray\b"):
        bag_of_words(images, vocabulary.words)


def test_without_opencv_the_extra_is_named(images, vocabulary, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    for call in (lambda: bag_of_words(images, vocabulary), lambda: learn_vocabulary(images)):
        with pytest.raises(AntipodalError, match=r"OpenCV.*\[images\]"):
            call()


def test_the_modules_load_without_opencv_and_without_clustering(monkeypatch):
    for optional in ("cv2", "sklearn.cluster"):
        monkeypatch.setitem(sys.modules, optional, None)
    for name in ("images", "words"):
        spec = find_spec(f"antipodal.features.{name}")
        spec.loader.exec_module(module_from_spec(spec))
