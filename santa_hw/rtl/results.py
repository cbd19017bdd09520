"""Co-simulation reports as JSON and JUnit files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from santa_hw.rtl.simulation import Report


def write_json(reports: Sequence[Report], path: Path) -> None:
    """All reports, a list of objects."""
    path.write_text(json.dumps([report.to_dict() for report in reports], indent=2) + "\n", encoding="utf-8")


def write_junit(reports: Sequence[Report], path: Path) -> None:
    """One test case a report; a mismatch is a failure with its text."""
    failures = sum(report.mismatch is not None for report in reports)
    suite = ElementTree.Element(
        "testsuite", name="santa-hw cosim", tests=str(len(reports)), failures=str(failures), errors="0", skipped="0"
    )
    for report in reports:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"santa_hw.rtl.{report.block}", name=f"{report.simulator} {report.design}"
        )
        if report.mismatch is not None:
            failure = ElementTree.SubElement(case, "failure", message=str(report.mismatch).splitlines()[0])
            failure.text = str(report)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
