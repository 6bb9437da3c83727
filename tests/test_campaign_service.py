"""The campaigns against a service, for some seconds each."""

from hostile import attack
from soak import run_soak


def test_a_service_under_attack_stays_ready_small_and_right():
    found = attack(5, seed=0)
    assert found["failures"] == []
    assert found["answers"]["honest 200"] >= 3


def test_a_service_that_is_killed_restored_and_changed_loses_nothing():
    found = run_soak(5, seed=3)
    assert found["failures"] == []
    assert found["answers checked"] >= 10
