"""How a command ends: errors as one line on stderr, and exit codes that mean something."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

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
