"""The fault-injection tests of the service, for some seconds each."""

import os

import pytest

import hostile
import soak
from hostile import attack_directly, attack_proxy
from processes import processes, run_command, start_command
from served import HANG
from services import Proxy, Service
from soak import NAME, run_soak


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    """Fork all processes from one that has done the imports."""

    def begin(self):
        options = ("--port", self.port, "--keys", self.folder / "keys", *self.options)
        variables = os.environ | {"OMP_NUM_THREADS": "1"}
        return start_command("serve", *options, env=variables, files=[self.log, self.log])

    def point_to(world, folder):
        done = run_command("switch", folder / "mounts.json", f"{NAME}={world.mount}")
        assert done.returncode == 0, done.stderr

    monkeypatch.setattr(Service, "begin", begin)
    monkeypatch.setattr(soak, "point_to", point_to)
    monkeypatch.setattr(hostile, "processes", processes)


def test_a_service_under_attack_stays_ready_and_correct():
    found = attack_directly(5, seed=0, max_ready_seconds=HANG)
    assert found["failures"] == []
    assert found["answers"]["honest 200"] >= 1


@pytest.mark.skipif(not Proxy.is_available(), reason="nginx or openssl is not installed")
def test_a_service_behind_nginx_stays_ready_and_correct():
    found = attack_proxy(5, seed=0, max_ready_seconds=HANG)
    assert found["failures"] == []
    assert found["answers"]["honest 200"] >= 1


def test_a_service_that_is_killed_restored_and_changed_loses_nothing():
    found = run_soak(5, seed=3)
    assert found["failures"] == []
    assert found["answers checked"] >= 10
