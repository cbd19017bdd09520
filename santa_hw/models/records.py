"""Records of a graded task: a file of JSON lines, or a data set of the Hugging Face hub."""

from __future__ import annotations

import json
from os.path import expanduser
from pathlib import Path
from typing import Any

from santa_hw.models.texts import HUB, hub_rows, parse_hub


def load_records(name: str | Path) -> list[dict[str, Any]]:
    """All records of a data set, in order.

    Parameters
    ----------
    name : str or path
        A UTF-8 file with a JSON object on each line, or ``hub:owner/name[/config][:split]`` (split defaults to
        ``test``), which needs the package ``datasets``.

    Raises
    ------
    ValueError
        If there is no such file or data set, a line is no JSON object, or there are no records.
    """
    records = _from_hub(str(name)) if str(name).startswith(HUB) else _from_file(Path(expanduser(name)))
    if not records:
        raise ValueError(f"data {str(name)!r} is empty: some records are allowed")
    return records


def _from_hub(name: str) -> list[dict[str, Any]]:
    if name.count(":") > 2:
        raise ValueError(f"data {name!r}: hub:dataset[/config][:split] is allowed")
    dataset, config, split, _ = parse_hub(name, what="data")
    return [dict(row) for row in hub_rows(name, dataset, config, split, what="data")]


def _from_file(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise ValueError(f"data {str(path)!r}: no such file; allowed are a file of JSON lines, or hub:dataset")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"data {str(path)!r} is not UTF-8 ({error.reason} at byte {error.start})") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"data {str(path)!r}, line {number} is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise ValueError(f"data {str(path)!r}, line {number} is {line[:40]}: a JSON object is allowed")
        records.append(record)
    return records
