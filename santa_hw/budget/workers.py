"""Workers: they claim a schedule, evaluate it and hand its reward in; on this machine, or on a Ray cluster."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol, Self

from santa_hw.budget.folder import Folder

Reward = Callable[[Sequence[int], int], float]
"""``reward(samples, seed)``: how good a schedule is, larger is better, with random words of that seed."""

PATIENCE = 60.0
"""Default seconds after which a claim that was not renewed is a dead worker's."""

POLL = 0.02
MOST_DEATHS = 5
"""Times that workers may be killed without one result in between, before the run gives up."""


class Opener(Protocol):
    """What a worker is given: it can be pickled, and opens what cannot."""

    def open(self, threads: int) -> Reward:
        """The reward, on so many threads."""


class Crew(Protocol):
    """Some workers. In a ``with`` statement they are there; after it they are gone."""

    size: int

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def tend(self, done: int) -> None:
        """
        Called again and again while results are awaited; returns soon, or does a job itself.

        Parameters
        ----------
        done : int
            Episodes in the log.

        Raises
        ------
        ValueError, RuntimeError
            What a worker ended with, or that they are killed again and again.
        """


# One worker -------------------------------------------------------------------------------------------------------


def work(
    folder: Folder, opener: Opener, threads: int, patience: float, alive: Callable[[], bool] = lambda: True
) -> None:
    """Do jobs as long as `alive` says so."""
    if not folder.path.is_dir():
        raise ValueError(
            f"{folder.path} is not there on {socket.gethostname()}: a folder that all machines share is allowed"
        )
    reward = opener.open(threads)
    while alive():
        if not do_job(folder, reward, patience):
            time.sleep(POLL)


def do_job(folder: Folder, reward: Reward, patience: float) -> bool:
    """Claim a job and hand its result in; False if there was none."""
    worker = name()
    job = folder.claim(worker, patience)
    if job is None:
        return False
    start = time.perf_counter()
    with _renewing(folder, job["episode"], patience / 4):
        value = float(reward(job["samples"], job["seed"]))
    if not math.isfinite(value):
        raise ValueError(f"reward of episode {job['episode']} is {value}: a finite number is allowed")
    seconds = time.perf_counter() - start
    folder.hand_in({"episode": job["episode"], "reward": value, "seconds": seconds, "worker": worker})
    return True


def name() -> str:
    """This process, among all machines."""
    return f"{socket.gethostname()}-{os.getpid()}"


@contextmanager
def _renewing(folder: Folder, episode: int, interval: float) -> Iterator[None]:
    """Renew a claim from time to time, in a thread of its own."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(interval):
            folder.renew(episode)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# Crews ------------------------------------------------------------------------------------------------------------


class InProcess:
    """One worker: the coordinator itself, between two looks at the results."""

    size = 1

    def __init__(self, folder: Folder, reward: Reward, patience: float = PATIENCE) -> None:
        self._job = partial(do_job, folder, reward, patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def tend(self, done: int) -> None:
        if not self._job():
            # A worker of an earlier run, whose coordinator was killed, has taken it.
            time.sleep(POLL)


class Processes:
    """Workers in processes of their own on this machine, which share out its cores. The dead are replaced."""

    def __init__(self, folder: Folder, opener: Opener, size: int, patience: float = PATIENCE) -> None:
        self.size = size
        self._folder = folder
        self._patience = patience
        self._opener = opener
        self._threads = max(1, len(os.sched_getaffinity(0)) // size)
        # Spawned: a fork would copy torch's and numba's thread pools in an unknown state.
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        self._deaths = _Deaths()

    def __enter__(self) -> Self:
        self._workers = [self._start() for _ in range(self.size)]
        return self

    def __exit__(self, *error: object) -> None:
        for process, _ in self._workers:
            process.terminate()
        for process, connection in self._workers:
            process.join()
            connection.close()

    def tend(self, done: int) -> None:
        time.sleep(POLL)
        for place, (process, connection) in enumerate(self._workers):
            if process.is_alive():
                continue
            if connection.poll():
                _raise(connection)
            self._deaths.count(done, f"exit code {process.exitcode}")
            self._folder.release(f"{socket.gethostname()}-{process.pid}")
            connection.close()
            self._workers[place] = self._start()

    def _start(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        ours, theirs = self._context.Pipe(duplex=False)
        arguments = (theirs, self._folder, self._opener, self._threads, self._patience)
        process = self._context.Process(target=_run, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return process, ours


class Ray:
    """
    Workers as tasks of a Ray cluster, all of which see the folder. The dead are replaced.

    Parameters
    ----------
    address : str
        What ``ray.init`` takes: ``auto``, ``host:port`` or ``local``.

    Raises
    ------
    ValueError
        The package ray is missing, there is no cluster, or it has fewer CPUs than workers.
    """

    def __init__(self, folder: Folder, opener: Opener, size: int, address: str, patience: float = PATIENCE) -> None:
        self.size = size
        try:
            import ray
        except ImportError as error:
            raise ValueError("--ray needs the package ray: pip install 'santa-hw[cluster]'") from error
        self._ray: Any = ray
        self._address = address
        self._arguments = (folder, opener)
        self._patience = patience
        self._deaths = _Deaths()

    def __enter__(self) -> Self:
        try:
            self._ray.init(address=self._address, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, self._ray.exceptions.RayError) as error:
            raise ValueError(f"--ray {self._address!r}: {str(error).splitlines()[0]}") from error
        cpus = [int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]]
        threads = share(cpus, self.size)
        task = self._ray.remote(num_cpus=threads, max_retries=0)(work)
        self._start = lambda: task.remote(*self._arguments, threads, self._patience)
        self._tasks = [self._start() for _ in range(self.size)]
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def tend(self, done: int) -> None:
        ended, _ = self._ray.wait(self._tasks, timeout=POLL)
        for task in ended:
            try:
                self._ray.get(task)
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, self._ray.exceptions.RayError):
                    # Not the worker's own: its machine could not open what it was sent.
                    raise ValueError(
                        f"--ray {self._address!r}: a worker says {str(error.cause).splitlines()[0]!r}; "
                        "the same santa-hw on all machines is allowed"
                    ) from error
                raise error.cause from error
            except self._ray.exceptions.RayError as error:
                self._deaths.count(done, str(error).splitlines()[0])
                # Its claim is free again after `patience`: which one it was, Ray does not say.
                self._tasks[self._tasks.index(task)] = self._start()


def share(cpus: Sequence[int], workers: int) -> int:
    """
    CPUs that each of some workers can have, on machines that have so many.

    Examples
    --------
    >>> share([8, 4], 3)
    4
    """
    for each in range(max(cpus, default=0), 0, -1):
        if sum(count // each for count in cpus) >= workers:
            return each
    raise ValueError(f"workers = {workers}: at most the cluster's {sum(cpus)} CPUs are allowed")


class _Deaths:
    """Counts workers that were killed, and gives up where no result comes between one death and the next."""

    def __init__(self) -> None:
        self._count = self._done = 0

    def count(self, done: int, how: str) -> None:
        if done != self._done:
            self._count, self._done = 0, done
        self._count += 1
        if self._count > MOST_DEATHS:
            raise RuntimeError(f"workers were killed {self._count} times without a result in between (last: {how})")


def _run(connection: Connection, folder: Folder, opener: Opener, threads: int, patience: float) -> None:
    """A process of `Processes`: what it fails with goes to the coordinator as text."""
    # Ctrl-C reaches the whole group; the coordinator ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    try:
        work(folder, opener, threads, patience, alive=lambda: parent is not None and parent.is_alive())
    except (ValueError, OSError) as error:
        connection.send((True, str(error)))
    except Exception:
        connection.send((False, traceback.format_exc()))


def _raise(connection: Connection) -> None:
    try:
        refused, text = connection.recv()
    except EOFError:
        return
    if refused:
        raise ValueError(text)
    raise RuntimeError(f"a worker failed:\n{text}")
