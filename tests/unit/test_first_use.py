"""What a feature needs is there once its first use was noted."""

from __future__ import annotations

import threading

from pymongo_resilience.first_use import FirstUse


def test_steps_run_once_at_the_first_use() -> None:
    used, calls = FirstUse(), list[str]()
    used.when(lambda: calls.append("before"))
    assert calls == []
    used.note()
    used.note()
    assert calls == ["before"]
    used.when(lambda: calls.append("after"))
    assert calls == ["before", "after"]


def test_a_forgotten_step_is_not_run() -> None:
    used, calls = FirstUse(), list[str]()

    def step() -> None:
        calls.append("step")

    used.when(step)
    used.forget(step)
    used.note()
    used.forget(step)
    assert calls == []


def test_every_thread_that_notes_the_use_waits_for_the_steps() -> None:
    used, entered, finish, done = FirstUse(), threading.Event(), threading.Event(), list[bool]()

    def step() -> None:
        entered.set()
        finish.wait(10)
        done.append(True)

    used.when(step)
    first = threading.Thread(target=used.note)
    first.start()
    entered.wait(10)
    seen = list[list[bool]]()

    def second() -> None:
        used.note()
        seen.append(done.copy())

    other = threading.Thread(target=second)
    other.start()
    finish.set()
    for each in (first, other):
        each.join(10)
    assert seen == [[True]]


def test_a_forked_child_does_not_inherit_a_lock_that_is_held() -> None:
    used, entered, finish = FirstUse(), threading.Event(), threading.Event()

    def step() -> None:
        entered.set()
        finish.wait(10)

    used.when(step)
    holder = threading.Thread(target=used.note)
    holder.start()
    entered.wait(10)
    used.reset_after_fork()
    used.note()
    finish.set()
    holder.join(10)
    assert used.happened
