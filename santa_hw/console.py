"""How a command runs and ends: progress and errors on stderr, and exit codes that mean something."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130
"""Exit codes: input that is refused, anything else that went wrong, and Ctrl-C."""

WIDTH = 160
"""Characters of a line that goes to a file or a pipe."""


@contextmanager
def reporting() -> Iterator[None]:
    """Turn exceptions into one line on stderr, their notes at its end, and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal of another encoding gets ? for what it lacks: no reason to lose a run's results.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        yield
    except KeyboardInterrupt as error:
        _stop(INTERRUPTED, "stopped", error)
    except BrokenPipeError as error:
        # What is left in the buffer has no reader either: Python would complain at its end.
        with suppress(OSError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _stop(FAILURE, "stopped: what read the output has closed it", error)
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


def check_files(outputs: Mapping[str, Path | None], inputs: Mapping[str, str | Path | None]) -> None:
    """Refuse files, named by their options, that cannot be written or would take the place of an input or each other.

    Called before a run takes its time.
    """
    taken = {Path(path).resolve(): option for option, path in inputs.items() if path is not None}
    for option, path in outputs.items():
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"{option} {path}: it is a folder; a file is allowed")
        if not path.absolute().parent.is_dir():
            raise ValueError(f"{option} {path}: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise ValueError(f"{option} {path}: it cannot be written; a file or folder that can be is allowed")
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise ValueError(f"{option} {path}: it is the file of {other}; files of different names are allowed")


def print_table(table: Table) -> None:
    """Print on stdout: a file or a pipe has no width to keep to, and a terminal that is too narrow cuts no cell off."""
    from rich.console import Console

    console = Console()

    def letters(width: int) -> int:
        Console(file=(text := io.StringIO()), width=width, color_system=None).print(table)
        return sum(map(str.isalnum, text.getvalue()))

    wanted = console.width if console.is_terminal else WIDTH
    least, most = console.measure(table, options=console.options.update(max_width=1 << 16))
    # Cells may fold, but narrow columns lose what they hold.
    widths = [wanted, max(wanted, least), max(wanted, most)]
    Console(width=next(width for width in widths if letters(width) >= letters(widths[-1]))).print(table)


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
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    ) as bar:
        job = bar.add_task("", total=total)
        yield bar, lambda steps=1: bar.advance(job, steps)
