"""Retry policies: who says it, what it may say, and the delays it leads to [M-5, R-4, R-18]."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Retry
from perdure.core.durations import MAX_DURATION_US, duration_us
from perdure.core.retry import DEFAULT_RETRY, MAX_LOST_IN_A_ROW, after_failure, backoff_us
from perdure.define.policy import effective_retry, effective_timeout_s
from perdure.errors import DefinitionError

make: Any = Retry

# --- precedence


@pytest.mark.parametrize("given_at", list(itertools.product([False, True], repeat=3)), ids=str)
def test_the_policy_nearest_to_the_step_holds(given_at: tuple[bool, bool, bool]) -> None:  # M-5
    policies = [Retry(max_attempts=n) if there else None for n, there in enumerate(given_at, start=1)]
    timeouts = [float(n) if there else None for n, there in enumerate(given_at, start=1)]
    first = given_at.index(True) if any(given_at) else 3
    source = ("step", "pipeline", "app", "default")[first]
    assert effective_retry(*policies) == ([*policies, DEFAULT_RETRY][first], source)
    assert effective_timeout_s(*timeouts) == ([*timeouts, None][first], source)


def test_policies_are_taken_whole() -> None:
    policy, _ = effective_retry(Retry(max_attempts=3), Retry(initial=9, then="fail"), None)
    assert policy == Retry(max_attempts=3)


# --- values


def test_the_default_is_a_tenth_of_a_second_doubling_to_half_a_minute_without_bound() -> None:
    assert (DEFAULT_RETRY.initial_us, DEFAULT_RETRY.factor, DEFAULT_RETRY.cap_us) == (100_000, 2.0, 30_000_000)
    assert DEFAULT_RETRY.bound("forward") is None
    assert DEFAULT_RETRY.bound("unwind") is None
    assert DEFAULT_RETRY.then == "hold"


def test_durations_are_seconds_or_timedelta() -> None:
    assert Retry(initial=timedelta(milliseconds=5)).initial_us == 5_000
    assert Retry(initial=0.005).initial_us == 5_000


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"max_attempts": 0}, "at least one attempt"),
        ({"max_attempts": -1}, "at least one attempt"),
        ({"max_attempts": 1.5}, "whole number"),
        ({"max_attempts": True}, "whole number"),
        ({"unwind_max_attempts": 0}, "at least one attempt"),
        ({"initial": -0.1}, "initial=.* must not be negative"),
        ({"initial": float("nan")}, "must be finite"),
        ({"initial": None}, "must be seconds"),
        ({"initial": 60}, r"initial=60\) is longer than cap=30.0"),
        ({"cap": float("inf")}, "cap=.* must be finite"),
        ({"cap": timedelta.max}, "a thousand years"),
        ({"factor": 0.5}, "factor=0.5. must be between 1"),
        ({"factor": float("nan")}, "factor=nan"),
        ({"factor": float("inf")}, "factor=inf"),
        ({"factor": "2"}, "factor=.* must be a number"),
        ({"jitter": 1.5}, "jitter=1.5. must be between 0 and 1"),
        ({"jitter": -0.1}, "jitter"),
        ({"never": ValueError}, "never=.* must be a tuple"),
        ({"never": ("ValueError",)}, "never=.* must hold exception types"),
        ({"never": (int,)}, "never=.* must hold exception types"),
        ({"then": "give-up"}, "then=.* must be 'hold' or 'fail'"),
    ],
    ids=str,
)
def test_policies_that_cannot_work_are_refused(arguments: dict[str, Any], problem: str) -> None:  # M-5
    with pytest.raises(DefinitionError, match=problem):
        make(**arguments)


def test_never_may_be_a_list_and_holds_subclasses() -> None:  # M-5
    policy = make(never=[LookupError])
    assert policy.never == (LookupError,)
    assert policy.is_never(KeyError())
    assert not policy.is_never(ValueError())
    assert not Retry().is_never(ValueError())


# --- decisions


@pytest.mark.parametrize(
    ("policy", "phase", "failures", "never", "lost", "verdict"),
    [
        (Retry(), "forward", 10**6, False, 0, "retry"),
        (Retry(max_attempts=3), "forward", 2, False, 0, "retry"),
        (Retry(max_attempts=3), "forward", 3, False, 0, "hold"),
        (Retry(max_attempts=3, then="fail"), "forward", 3, False, 0, "fail"),
        (Retry(max_attempts=1), "forward", 1, False, 0, "hold"),
        (Retry(max_attempts=3, then="fail"), "unwind", 99, False, 0, "retry"),
        (Retry(unwind_max_attempts=2), "unwind", 2, False, 0, "hold"),
        (Retry(unwind_max_attempts=2), "forward", 2, False, 0, "retry"),
        (Retry(), "forward", 1, True, 0, "fail"),
        (Retry(max_attempts=9), "forward", 1, True, 0, "fail"),
        (Retry(), "forward", 4, False, MAX_LOST_IN_A_ROW - 1, "retry"),
        (Retry(), "forward", 5, False, MAX_LOST_IN_A_ROW, "hold"),
        (Retry(max_attempts=5, then="fail"), "forward", 5, False, MAX_LOST_IN_A_ROW, "hold"),
        (Retry(), "unwind", 5, False, MAX_LOST_IN_A_ROW, "hold"),
    ],
    ids=map(str, range(14)),
)
def test_what_becomes_of_a_failed_attempt(
    policy: Retry, phase: Any, failures: int, never: bool, lost: int, verdict: str
) -> None:  # M-5
    assert after_failure(policy, phase, failures, never, lost) == verdict


# --- delays

durations = st.floats(0, 1e9, allow_nan=False) | st.timedeltas(timedelta(0), timedelta(days=10_000))


def _policy(one: float | timedelta, other: float | timedelta, factor: float, jitter: float) -> Retry:
    initial, cap = sorted((one, other), key=duration_us)
    return Retry(initial=initial, cap=cap, factor=factor, jitter=jitter)


policies = st.builds(_policy, durations, durations, st.floats(1, 1e6, allow_nan=False), st.floats(0, 1))
chances = st.floats(0, 1, exclude_max=True)


@given(policies, st.integers(1, 10**6), chances)
def test_a_delay_is_never_beyond_its_cap_and_jitter(policy: Retry, failures: int, chance: float) -> None:
    delay_us = backoff_us(policy, failures, chance)
    assert 0 <= delay_us <= policy.cap_us * (1 + policy.jitter) + 1


@given(policies, st.integers(1, 10**6), chances)
def test_delays_do_not_shrink(policy: Retry, failures: int, chance: float) -> None:
    assert backoff_us(policy, failures, chance) <= backoff_us(policy, failures + 1, chance) + 1


def test_delays_double_up_to_the_cap() -> None:
    policy = Retry(jitter=0)
    delays = [backoff_us(policy, n, 0.5) / 1_000_000 for n in range(11)]
    assert delays == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    assert backoff_us(policy, 10**6, 0.5) == 30_000_000


def test_jitter_goes_both_ways() -> None:
    policy = Retry(initial=1, jitter=0.2)
    assert backoff_us(policy, 1, 0.0) == 800_000
    assert backoff_us(policy, 1, 0.5) == 1_000_000
    assert 1_199_000 < backoff_us(policy, 1, 0.999_999) <= 1_200_000


# --- durations


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.timedeltas())
def test_a_duration_is_finite_and_positive_or_refused(value: float | timedelta) -> None:
    try:
        us = duration_us(value)
    except ValueError:
        return
    assert 0 <= us <= MAX_DURATION_US
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    assert (us == 0) == (seconds == 0)
