"""
The files of a run. Whatever is killed, whenever, what they hold is whole.

    run.json              what is learned and how; a later run must agree
    episodes.jsonl        the log: one line an episode, in the order in which the policy learned from them
    jobs/000012.json      a schedule to be evaluated
    jobs/000012.claim     the worker that evaluates it; its file's age says whether that worker is alive
    results/000012.json   what came out

Only the coordinator, of which there is one at a time, writes the log and the jobs. Claims spare work and no more: that
no result counts twice rests on the log, which takes an episode once.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Document = dict[str, Any]

WORK = {"episode": int, "samples": list, "seed": int}
JOB = WORK | {"version": int, "shares": list}
RESULT = {"episode": int, "reward": float}
EPISODE = JOB | RESULT
"""Fields, and their types, that a worker, a job, a result and every line of the log have."""


class Folder:
    """The folder of one run. Nothing is read or written before a method is called."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        self._log = self.path / "episodes.jsonl"

    # The coordinator's ------------------------------------------------------------------------------------------------

    @contextmanager
    def coordinating(self, run: Mapping[str, Any]) -> Iterator[None]:
        """
        Make the folder, or take it up again, and keep other coordinators out. What a kill left half done is undone.

        Parameters
        ----------
        run : mapping
            JSON values that say what is learned.

        Raises
        ------
        ValueError
            Another coordinator works here, the folder is another run's or not a run's, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR, 0o666)
        except OSError as error:
            raise ValueError(f"{self.path} cannot be written: {error.strerror}") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{self.path}: another run works in this folder; one at a time is allowed") from None
            self._agree(json.loads(json.dumps(run)))
            for folder in ("jobs", "results"):
                (self.path / folder).mkdir(exist_ok=True)
            # Whoever made these is dead, or will find its work done.
            for left in (*self.path.glob("jobs/*.claim"), *self.path.glob("*/.*.part")):
                left.unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)

    def _agree(self, run: Document) -> None:
        if not (self.path / "run.json").exists():
            if any(self.path.glob("[!.]*")):
                raise ValueError(f"{self.path} holds other files: an empty folder, a new one or a run's is allowed")
            write(self.path / "run.json", run)
            return
        old = _read(self.path / "run.json", {})
        for name in sorted({*old, *run}):
            if old.get(name) != run.get(name):
                raise ValueError(
                    f"{name} = {run.get(name)!r}: {self.path} has learned with {old.get(name)!r}; "
                    "the same or another folder is allowed"
                )

    def episodes(self) -> list[Document]:
        """
        The log, each episode once; a last line that a kill tore is cut off.

        Raises
        ------
        ValueError
            A line before the last is no episode: names it.
        """
        if not self._log.exists():
            return []
        data = self._log.read_bytes()
        # A line without its end was never acknowledged: its result is still there, or will be computed again.
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(self._log, len(whole))
        found: dict[int, Document] = {}
        for number, line in enumerate(whole.splitlines(), start=1):
            episode = _parse(line)
            if episode is None:
                raise ValueError(f"{self._log}, line {number} is no episode: restore the file, or take another folder")
            found.setdefault(episode["episode"], episode)
        return list(found.values())

    def log(self, episode: Mapping[str, Any]) -> None:
        """Append an episode, on disk when this returns."""
        with self._log.open("ab") as file:
            file.write(json.dumps(episode, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def post(self, job: Mapping[str, Any]) -> None:
        """Offer a job to the workers."""
        write(self._job(job["episode"]), job)

    def jobs(self) -> dict[int, Document]:
        """Jobs that are offered, by episode; a file that is none is a ValueError."""
        return {int(file.stem): _read(file, JOB) for file in sorted((self.path / "jobs").glob("[0-9]*.json"))}

    def results(self) -> dict[int, Document]:
        """Results that were handed in, by episode; a file that is none is a ValueError."""
        return {int(file.stem): _read(file, RESULT) for file in sorted((self.path / "results").glob("[0-9]*.json"))}

    def clear(self, episode: int) -> None:
        """Take an episode's job, result and claim away."""
        # The job first: while it is there, a worker that finds no result would take it.
        for file in (self._job(episode), self._result(episode), self._claim(episode)):
            file.unlink(missing_ok=True)

    def release(self, worker: str) -> None:
        """Free what a worker that is known to be dead had claimed."""
        for claim in (self.path / "jobs").glob("*.claim"):
            with suppress(FileNotFoundError):
                if claim.read_text() == worker:
                    claim.unlink()

    # The workers' -----------------------------------------------------------------------------------------------------

    def claim(self, worker: str, patience: float) -> Document | None:
        """
        A job that nobody works on, now this worker's; None if there is none.

        A claim that was not renewed for `patience` seconds is a dead worker's, and is taken over. The clocks of the
        machines must agree that far.
        """
        for file in sorted((self.path / "jobs").glob("[0-9]*.json")):
            episode = int(file.stem)
            claim = self._claim(episode)
            if self._result(episode).exists():
                continue
            with suppress(FileNotFoundError):
                if time.time() - claim.stat().st_mtime > patience:
                    claim.unlink()
            try:
                with claim.open("x") as out:
                    out.write(worker)
                return _read(file, WORK)
            except FileExistsError:
                continue
            except FileNotFoundError:
                # It was done and cleared meanwhile.
                claim.unlink(missing_ok=True)
        return None

    def renew(self, episode: int) -> None:
        """Say that the worker of this episode is alive."""
        with suppress(FileNotFoundError):
            os.utime(self._claim(episode))

    def hand_in(self, result: Mapping[str, Any]) -> None:
        """A job's result, on disk when this returns. Of several for one episode the coordinator takes one."""
        write(self._result(result["episode"]), result)

    def _job(self, episode: int) -> Path:
        return self.path / "jobs" / f"{episode:06d}.json"

    def _claim(self, episode: int) -> Path:
        return self.path / "jobs" / f"{episode:06d}.claim"

    def _result(self, episode: int) -> Path:
        return self.path / "results" / f"{episode:06d}.json"


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file that is there whole or not at all, and on disk when this returns."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(document, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _read(path: Path, types: Mapping[str, type]) -> Document:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); allowed: a file that santa-hw budget wrote") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path} holds no JSON object; allowed: a file that santa-hw budget wrote")
    for name, kind in types.items():
        if name not in document:
            raise ValueError(f"{path} has no field {name}; allowed: a file that santa-hw budget wrote")
        if not isinstance(document[name], kind):
            raise ValueError(f"{path}: {name} = {document[name]!r}: a value of type {kind.__name__} is allowed")
    return document


def _parse(line: bytes) -> Document | None:
    """An episode from its line; None if it is none."""
    try:
        episode = json.loads(line)
    except ValueError:
        return None
    fits = isinstance(episode, dict) and all(isinstance(episode.get(name), kind) for name, kind in EPISODE.items())
    return episode if fits else None
