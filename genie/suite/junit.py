"""Verdicts as JUnit XML, as CI systems read it; genie/suite/junit.xsd is its schema.

A suite of tests per case, a test per check. Warnings pass, and are told in the test's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from genie.suite.verdict import CaseResult, Check, Sign


def junit(name: str, results: Sequence[CaseResult], left_out: Sequence[str]) -> str:
    """The XML of a suite's results; cases that did not fit the testbed are skipped tests."""
    root = ET.Element("testsuites", name=name)
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for result in results:
        counts = _suite(root, result)
        totals = {key: totals[key] + counts[key] for key in totals}
    if left_out:
        own = ET.SubElement(root, "testsuite", name="left out", tests=str(len(left_out)), failures="0", errors="0")
        own.set("skipped", str(len(left_out)))
        own.set("time", "0.000")
        for text in left_out:
            test = ET.SubElement(own, "testcase", classname=f"{name}.left out", name=_clean(text), time="0.000")
            ET.SubElement(test, "skipped", message="more ranks than the testbed has places")
        totals["tests"] += len(left_out)
        totals["skipped"] += len(left_out)
    for key, value in totals.items():
        root.set(key, str(value))
    root.set("time", f"{sum(result.seconds for result in results):.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, result: CaseResult) -> dict[str, int]:
    failed = sum(check.sign is Sign.FAIL for check in result.checks)
    counts = {"tests": len(result.checks), "failures": failed, "errors": 0, "skipped": 0}
    own = ET.SubElement(root, "testsuite", name=_clean(result.case.name))
    for key, value in (*counts.items(), ("time", f"{result.seconds:.3f}")):
        own.set(key, str(value))
    for check in result.checks:
        _test(own, result, check)
    return counts


def _test(own: ET.Element, result: CaseResult, check: Check) -> None:
    test = ET.SubElement(own, "testcase", classname=_clean(result.case.name), name=_clean(check.what), time="0.000")
    lines = [check.line, *(f"  {row}" for row in check.rows)]
    if check.sign is Sign.FAIL:
        lines += [result.flaky] if result.flaky else []
        failure = ET.SubElement(test, "failure", message=_clean(f"Found: {check.found}"), type="threshold")
        failure.text = _clean("\n".join(lines))
    elif check.sign is Sign.WARN or check.rows:
        ET.SubElement(test, "system-out").text = _clean("\n".join(lines))


def _clean(text: str) -> str:
    """Without characters that XML does not allow."""
    return "".join(c if c in "\t\n" or c.isprintable() else "?" for c in text)
