"""Texts to evaluate and calibrate on: builtin, from a file, or from the Hugging Face hub."""

from __future__ import annotations

from os.path import expanduser
from pathlib import Path
from typing import Any

from santa_hw.models.defaults import TEXTS, read_text
from santa_hw.models.download import FetchError

HUB = "hub:"
_ALLOWED = f"{', '.join(TEXTS)}, a text file, or hub:dataset[/config][:split[:field]]"


def load_text(name: str | Path, *, cache: str | Path | None = None) -> str:
    """A text as one string.

    Parameters
    ----------
    name : str or path
        ``shakespeare-eval`` or ``shakespeare-calibration`` (two plays; downloaded at first need); a UTF-8
        file; or a data set of the Hugging Face hub, ``hub:owner/name[/config][:split[:field]]`` (or
        ``hub:name`` without an owner), whose rows are joined by blank lines; split defaults to ``test``,
        field to ``text``. The latter needs the package ``datasets``.
    cache : path, optional
        See :func:`~santa_hw.models.download.cache_dir`.

    Raises
    ------
    ValueError
        If there is no such text, it is not UTF-8, or it is empty.
    """
    if str(name).startswith(HUB):
        text = _from_hub(str(name))
    elif str(name) in TEXTS:
        text = read_text(str(name), cache)
    else:
        text = _from_file(Path(expanduser(name)))
    if not text.strip():
        raise ValueError(f"text {str(name)!r} is empty: some words are allowed")
    return text


def _from_file(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"text {str(path)!r}: no such text; allowed are {_ALLOWED}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"text {str(path)!r} is not UTF-8 ({error.reason} at byte {error.start})") from error


def _from_hub(name: str) -> str:
    dataset, config, split, field = parse_hub(name)
    rows = hub_rows(name, dataset, config, split)
    if field not in rows.column_names:
        raise ValueError(f"text {name!r}: field {field!r} is not there; allowed are {', '.join(rows.column_names)}")
    return "\n\n".join(str(row) for row in rows[field])


def hub_rows(name: str, dataset: str, config: str | None, split: str, *, what: str = "text") -> Any:
    """A data set of the hub; errors call it `what` by the `name` that the user gave."""
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"{what} {name!r} needs the package datasets: pip install datasets") from error
    try:
        return datasets.load_dataset(dataset, config, split=split)
    except ConnectionError as error:
        raise FetchError(f"{what} {name!r}: the hub is unreachable ({_first_line(error)})") from error
    except Exception as error:  # the library raises its own kinds for an unknown name, configuration or split
        raise ValueError(f"{what} {name!r}: {_first_line(error)}") from error


def parse_hub(name: str, *, what: str = "text") -> tuple[str, str | None, str, str]:
    """Data set, configuration, split and field of a ``hub:`` name.

    >>> parse_hub("hub:Salesforce/wikitext/wikitext-2-raw-v1:validation")
    ('Salesforce/wikitext', 'wikitext-2-raw-v1', 'validation', 'text')
    """
    place, *rest = name.removeprefix(HUB).split(":")
    parts = place.split("/")
    if not all([*parts, *rest]) or len(parts) > 3 or len(rest) > 2:
        raise ValueError(f"{what} {name!r}: hub:dataset[/config][:split[:field]] is allowed")
    split, field = [*rest, *("test", "text")[len(rest) :]]
    return "/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split, field


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
