from importlib import resources
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import xmlschema

from genie.suite.junit import junit
from genie.suite.model import SuiteFile, scale
from genie.suite.verdict import CaseResult, Check, Sign

SCHEMA = xmlschema.XMLSchema(str(resources.files("genie.suite") / "junit.xsd"))


def result(*signs, name="c", rows=(), attempts=(0, 1)):
    file = SuiteFile.model_validate({"name": "s", "cases": [{"name": name, "pattern": "shift"}]})
    (case,) = scale(file, Path(), 4, ()).cases
    checks = tuple(Check(at, name, f"x < {at}", sign, 'a "b" \x00 & c', rows) for at, sign in enumerate(signs, 1))
    return CaseResult(case, "run", checks, 1.5, attempts)


def test_it_is_valid_and_its_counts_are_right():
    text = junit("s", [result(Sign.PASS, Sign.FAIL, rows=["row <1>"]), result(Sign.WARN, name="d")], ["big: 64 ranks"])
    SCHEMA.validate(text)
    root = ET.fromstring(text)
    assert {key: root.get(key) for key in ("tests", "failures", "skipped", "time")} == {
        "tests": "4",
        "failures": "1",
        "skipped": "1",
        "time": "3.000",
    }
    (failure,) = root.iter("failure")
    assert failure.get("message") == 'Found: a "b" ? & c'
    assert "row <1>" in failure.text


def test_warnings_pass_and_are_told():
    root = ET.fromstring(junit("s", [result(Sign.WARN)], []))
    assert root.get("failures") == "0"
    assert "[WARN]" in next(root.iter("system-out")).text


def test_a_flaky_failure_is_a_failure_and_says_so():
    root = ET.fromstring(junit("s", [result(Sign.FAIL, attempts=(1, 2))], []))
    assert "failed in 1 of 2 attempts" in next(root.iter("failure")).text


def test_an_empty_suite_is_valid():
    SCHEMA.validate(junit("s", [], []))


def test_the_schema_can_say_no():
    with pytest.raises(xmlschema.XMLSchemaException):
        SCHEMA.validate('<testsuites name="s"><nonsense/></testsuites>')
