"""The loop that writes schedules, takes results in whatever order they come, and learns from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from santa_hw.budget.folder import Document, Folder
from santa_hw.budget.policy import Policy, Settings
from santa_hw.budget.workers import Crew


def learn(
    folder: Folder,
    settings: Settings,
    about: Mapping[str, Any],
    episodes: int,
    crew: Crew,
    *,
    on_episode: Callable[[Document, bool], None] = lambda episode, fresh: None,
) -> Policy:
    """
    Run episodes until the folder's log has `episodes` of them; those that are there are not run again.

    With one worker an episode is drawn after the one before it was learned from: what is in the log then depends on
    the settings alone, however often the run was interrupted.

    Parameters
    ----------
    about : mapping
        JSON values, whatever else decides a reward: another run with the same folder must have the same.
    crew : Crew
        Who evaluates; started if there is something to do.
    on_episode : (episode, fresh) -> None
        Called for every line of the log; fresh is False for those that were there.

    Returns
    -------
    Policy
        As it stands after the whole log.

    Raises
    ------
    ValueError
        `episodes` below 1, a folder that is another run's, or what the task refuses.
    """
    if episodes < 1:
        raise ValueError(f"episodes = {episodes}: 1 or more is allowed")
    with folder.coordinating(asdict(settings) | dict(about)):
        policy = Policy(settings)
        done: set[int] = set()

        def take(episode: Document, fresh: bool) -> None:
            policy.learn(episode["shares"], episode["version"], episode["reward"])
            done.add(episode["episode"])
            on_episode(episode, fresh)

        for episode in folder.episodes():
            take(episode, False)
        if len(done) >= episodes:
            return policy
        jobs = {}
        for number, job in folder.jobs().items():
            if number in done or number >= episodes or job["version"] > policy.version:
                folder.clear(number)
            else:
                jobs[number] = job
        with crew:
            while len(done) < episodes:
                for number, result in folder.results().items():
                    if number in jobs:
                        episode = jobs.pop(number) | result
                        folder.log(episode)
                        take(episode, True)
                    folder.clear(number)
                free = (number for number in range(episodes) if number not in done and number not in jobs)
                for number, _ in zip(free, range(crew.size - len(jobs)), strict=False):
                    jobs[number] = {"episode": number, **policy.draw(number)._asdict()}
                    folder.post(jobs[number])
                crew.tend(len(done))
        # From workers whose job another had taken over.
        for number in folder.results():
            folder.clear(number)
        return policy
