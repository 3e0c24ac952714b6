"""The threads that step asynchronous streams: one for each model.

All asynchronous streams of a model are stepped on the same thread, a step at a time and in turns, so that what is
bound to a thread (compiled graphs, coroutines) stays where it is, and no two of them run the model at once. The thread
begins with the first stream and ends with the model, with `close_all()`, or with the interpreter, which waits for the
forward under way and no longer.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

__all__ = ["Stepper", "close_all", "stepper_of"]

Job = Callable[[], object]

_steppers: weakref.WeakKeyDictionary[Any, Stepper] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Leavable(Protocol):
    """Something that is stepped, and can be told to leave."""

    def leave(self) -> None:
        """Ends it on its thread, after the step under way."""


class Stepper:
    """One thread that does one job after the other, in the order in which they came.

    It begins with the first job, and ends when it is closed or when nobody holds the stepper any more.

    Args:
        name: What the thread is called.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()  # can be put to from a finalizer, unlike an executor
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name=name)
        self._starting = threading.Lock()
        self._closed = False
        self._open: weakref.WeakSet[Leavable] = weakref.WeakSet()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def submit(self, job: Job) -> bool:
        """Puts a job at the end of the queue; says no if the thread is closed."""
        if self._closed:
            return False
        self._jobs.put(job)
        if self._thread.ident is None:
            self._start()
        return True

    def register(self, stepped: Leavable) -> None:
        """Makes something known that is to be ended with the thread."""
        self._open.add(stepped)

    def close(self) -> None:
        """Ends all that is stepped here, and the thread; waits for both."""
        for stepped in list(self._open):
            stepped.leave()
        self._closed = True
        self._jobs.put(None)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        while not self._jobs.empty():  # what came while it was being closed
            _do(self._jobs)

    def _start(self) -> None:
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while _do(jobs):
        pass


def _do(jobs: SimpleQueue[Job | None]) -> bool:
    """Does the next job; says no if there are to be no more."""
    job = jobs.get()
    if job is not None:
        job()
    return job is not None


def stepper_of(model: Any) -> Stepper:
    """The thread of a model; a new one if it has none, or had one that was closed."""
    with _lock:
        stepper = _steppers.get(model)
        if stepper is None:
            stepper = _steppers[model] = Stepper(f"unspool-{type(model).__name__}")
        return stepper


def close_all() -> None:
    """Ends all asynchronous streams, their sinks closed, and the threads that step them.

    Blocks until the forwards under way are done. Models can be streamed again afterwards, on new threads.

    Example:
        >>> from unspool.stepping import close_all
        >>> close_all()
    """
    with _lock:
        closing = list(_steppers.values())
        _steppers.clear()
    for stepper in closing:
        stepper.close()


# The interpreter waits for threads before it calls what `atexit` knows, so the threads must be told before that.
threading._register_atexit(close_all)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_steppers.clear)
