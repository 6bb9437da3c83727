"""The fault-injection tests of the service, for some seconds each."""

import pytest

from hostile import attack_directly, attack_proxy
from served import HANG
from services import Proxy
from soak import run_soak


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
