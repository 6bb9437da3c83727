"""Process pool: several processes give the same results as one."""

import os
import signal

import pytest
from threadpoolctl import threadpool_info

from antipodal import AntipodalError
from antipodal.bench.workers import available_cores, run_jobs


def add(shared, job):
    """Return a sum, the process id, the greatest number of threads, and if SIGINT is blocked."""
    if job == 13:
        raise ValueError("thirteen")
    import torch  # after the start of the process, as hashers do

    pools = [pool["num_threads"] for pool in threadpool_info()]
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return shared + job, os.getpid(), max([torch.get_num_threads(), *pools]), blocked


def die(shared, job):
    if job == 1:
        os._exit(9)
    return job


@pytest.fixture(scope="module", params=[1, 2])
def run(request):
    """Number of processes and their results; shared, since starting processes takes seconds."""
    return request.param, dict(run_jobs(add, 100, [1, 13, 2, 3], request.param))


def test_every_job_returns_its_result_or_its_error(run):
    n_processes, outcomes = run
    assert {job: outcomes[job][0] for job in (1, 2, 3)} == {1: 101, 2: 102, 3: 103}
    assert isinstance(outcomes[13], ValueError)
    here = {outcomes[job][1] == os.getpid() for job in (1, 2, 3)}
    assert here == {n_processes == 1}


def test_workers_share_the_cores(run):
    n_processes, outcomes = run
    if n_processes > 1:
        used = {outcomes[job][2] for job in (1, 2, 3)}
        assert used == {max(1, available_cores() // n_processes)}


@pytest.mark.usefixtures("forked_workers")
def test_a_killed_worker_raises_an_error():
    with pytest.raises(AntipodalError, match="worker"):
        list(run_jobs(die, None, [0, 1, 2, 3], 2))


@pytest.mark.usefixtures("forked_workers")
def test_closing_the_iterator_early_ends_all_processes():
    outcomes = run_jobs(add, 0, range(20), 2)
    _, (_, pid, *_) = next(outcomes)
    outcomes.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_workers_block_sigint_from_their_start(run):
    n_processes, outcomes = run
    assert {outcomes[job][3] for job in (1, 2, 3)} == {n_processes > 1}


def test_no_jobs_give_no_results():
    assert list(run_jobs(add, 0, [], 2)) == []
