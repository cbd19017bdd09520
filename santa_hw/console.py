"""How a command runs and ends: progress and errors on stderr, and exit codes that mean something."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130
"""Exit codes: input that is refused, anything else that went wrong, and Ctrl-C."""


@contextmanager
def reporting() -> Iterator[None]:
    """Turn exceptions into one line on stderr, their notes at its end, and an exit code."""
    try:
        yield
    except KeyboardInterrupt as error:
        _stop(INTERRUPTED, "stopped", error)
    except (ValueError, OSError) as error:
        _stop(BAD_INPUT, f"error: {' '.join(str(error).split())}", error)
    except ImportError as error:
        _stop(FAILURE, f"error: {error}: pip install 'santa-hw[model]'", error)
    except Exception as error:
        traceback.print_exc()
        _stop(FAILURE, f"failure: {type(error).__name__}: {' '.join(str(error).split())}", error)


def _stop(code: int, line: str, error: BaseException) -> None:
    notes = getattr(error, "__notes__", [])
    typer.echo("; ".join([line, *notes]), err=True)
    raise typer.Exit(code) from None


@contextmanager
def progress(unit: str, total: int) -> Iterator[tuple[Progress, Callable[..., None]]]:
    """A bar on stderr and the function that moves it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(unit), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True, soft_wrap=True)
    # What a pipe reads from stdout stays there.
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:
        job = bar.add_task("", total=total)
        yield bar, lambda steps=1: bar.advance(job, steps)
