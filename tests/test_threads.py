"""Thread limits: restored in any order of exit, without effect on fitted hashers."""

import threading

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_info, threadpool_limits
from typer.testing import CliRunner

from antipodal import AGH, ITQ, KSH, LSH, BaseHasher, DeepLinf, Training, threads
from antipodal.cli import app
from antipodal.threads import all_threads, one_core, one_thread, usable_cores

X, Y = load_digits(return_X_y=True)


@pytest.fixture(autouse=True)
def two_threads():
    before, blas_before = torch.get_num_threads(), max(blas_threads())
    torch.set_num_threads(2)
    set_blas_threads(2)
    yield
    torch.set_num_threads(before)
    set_blas_threads(blas_before)


def blas_threads():
    """Return the numbers of threads of the process. OpenMP, in Faiss, has them per thread."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {pool["num_threads"] for pool in pools if pool.get("threading_layer") != "openmp"}


def in_a_new_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def set_blas_threads(n_threads):
    # In a thread that ends, as only the thread that set the number last can change it.
    in_a_new_thread(lambda: threadpool_limits(n_threads, user_api="blas"))


def test_overlapping_limits_restore_the_number_of_threads():
    entered, leave = threading.Event(), threading.Event()
    inside, after = [], []

    def second():
        with one_thread():
            inside.append(torch.get_num_threads())
            entered.set()
            leave.wait()
            inside.append(torch.get_num_threads())
        after.append(torch.get_num_threads())

    thread = threading.Thread(target=second)
    with one_thread():
        thread.start()
        entered.wait()
    leave.set()  # the first limit has ended before the second
    thread.join()
    assert inside == [1, 1]
    assert after == [2]
    assert torch.get_num_threads() == in_a_new_thread(torch.get_num_threads) == 2
    assert blas_threads() == {2}


def test_nested_limits_last_until_the_outer_one_ends():
    with one_thread():
        with one_thread():
            pass
        assert torch.get_num_threads() == 1
        assert blas_threads() == {1}
    assert torch.get_num_threads() == 2
    assert blas_threads() == {2}


def test_number_of_threads_is_restored_after_an_error():
    with pytest.raises(ValueError, match=r"\brow 0\b"):
        ITQ(8).fit(X * np.nan)
    assert torch.get_num_threads() == 2
    assert blas_threads() == {2}


def test_usable_cores_respect_the_environment_the_quota_and_the_context(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    for text, expected in (("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text)
        monkeypatch.setattr(threads, "_CGROUP", tmp_path / "cpu.max")
        threads._cores.cache_clear()
        assert usable_cores() == expected
    monkeypatch.setattr(threads, "_CGROUP", tmp_path / "missing")
    threads._cores.cache_clear()
    for text, expected in (("4", 4), ("1,2", 1), ("", 8), ("many", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert usable_cores() == expected
    with one_core():
        assert usable_cores() == 1
        assert in_a_new_thread(usable_cores) == 8
    threads._cores.cache_clear()


def test_threads_option_limits_encoding_and_ends_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    threads._cores.cache_clear()
    used, encode = [], BaseHasher._encode

    def recorded(*arguments):
        used.append(usable_cores())
        return encode(*arguments)

    monkeypatch.setattr(BaseHasher, "_encode", recorded)
    LSH(8, random_state=0).fit(X).save(tmp_path / "model")
    np.save(tmp_path / "rows.npy", X)
    command = ["encode", tmp_path / "model", tmp_path / "rows.npy", "-o", tmp_path / "codes.npy"]
    for options in (["--threads", "2"], [], ["--threads", "99"]):
        result = CliRunner().invoke(app, [*map(str, command), *options])
        assert result.exit_code == 0, result.output
    assert used == [2, 6, 8]
    assert usable_cores() == 6
    threads._cores.cache_clear()


def test_fit_uses_several_threads_on_request():
    with all_threads(), one_thread():
        assert torch.get_num_threads() == 2
        assert blas_threads() == {2}
    with one_thread():
        assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    "hasher",
    [
        DeepLinf(16, training=Training(n_anchors=300, n_epochs=2), random_state=0),
        DeepLinf(
            8,
            feature_map="none",
            init="ksvd",
            training=Training(sparsity=2, n_epochs=1),
            random_state=0,
        ),
        KSH(16, n_anchors=300, n_iter=5, random_state=0),
        ITQ(16, random_state=0),
        AGH(16, n_anchors=100, random_state=0),
    ],
)
def test_fitted_hashers_and_codes_do_not_depend_on_the_number_of_threads(hasher):
    codes, states = [], []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        set_blas_threads(n_threads)
        codes.append(hasher.fit(X[:600], Y[:600]).encode(X))
        states.append({k: np.asarray(v) for k, v in hasher.fitted_state().items()})
    np.testing.assert_array_equal(*codes)
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)
