"""Coarse parallelism: independent tasks on threads, each with single-threaded BLAS and compiled code without the GIL.

Tasks that own their rows from the dot product to the accumulator need no barrier between stages, which is faster than
parallel loops inside each stage, above all on a machine that others use too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numba
from threadpoolctl import ThreadpoolController


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


_SMALL = 1 << 18
"""Elements below which starting threads and limiting BLAS would take longer than the work."""


def run(tasks: Sequence[Callable[[], None]], elements: int) -> None:
    """Run all tasks on ``numba.get_num_threads()`` threads; the first exception is raised after all have ended.

    `elements` is how many numbers they work through in all: few are not worth a thread.
    """
    workers = min(numba.get_num_threads(), len(tasks))
    if len(tasks) == 1 or elements < _SMALL:
        for task in tasks:
            task()
        return
    with _controller().limit(limits=1, user_api="blas"):
        if workers <= 1:
            for task in tasks:
                task()
            return
        with ThreadPoolExecutor(workers) as pool:
            for future in [pool.submit(task) for task in tasks]:
                future.result()
