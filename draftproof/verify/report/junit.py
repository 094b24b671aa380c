"""JUnit XML for CI: a suite a leg, a case a check. Knows the format as far as its readers agree on it.

A failure that was expected is a skipped case with its reason; a check that broke is an error; an unexpected pass fails.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from draftproof.verify.contract import Verdict
from draftproof.verify.plan import Entry, State
from draftproof.verify.report.data import Report, reproduce, witness_lines

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0 has no way to say these


def to_junit(report: Report) -> str:
    root = ET.Element("testsuites", name="draftproof verify")
    for leg in dict.fromkeys(e.leg for e in report.outcome.entries):
        suite = ET.SubElement(root, "testsuite", name=_safe(leg))
        for entry in report.outcome.entries:
            if entry.leg == leg:
                _case(suite, report, entry)
        _totals(suite)
    if report.kills is not None:
        _mutants(root, report)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(e.result.seconds for e in report.outcome.entries):.3f}")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, report: Report, entry: Entry) -> None:
    result, outcome = entry.result, report.outcome
    case = _new_case(suite, entry.leg, result.name, result.seconds)
    if entry.key in outcome.expected:
        ET.SubElement(case, "skipped", message=_safe(f"fails as expected: {outcome.expected[entry.key]}"))
    elif entry.key in outcome.unexpected_passes:
        message = f"holds but was expected to fail: {outcome.unexpected_passes[entry.key]}"
        ET.SubElement(case, "failure", message=_safe(message), type="unexpected pass")
    elif result.verdict is Verdict.FAILS:
        failure = ET.SubElement(case, "failure", message=_safe(result.claim), type="fails")
        lines = [f"{name}: {value}" for name, value in witness_lines(entry)]
        failure.text = _safe("\n".join([f"p-value {result.p_value:.3g}", *lines, f"again: {reproduce(report, entry)}"]))
    elif result.verdict is Verdict.UNTESTED:
        bad = entry.state is State.BROKE
        ET.SubElement(case, "error" if bad else "skipped", message=_safe(result.note or "could not be tested"))
    out = ET.SubElement(case, "system-out")
    out.text = _safe(f"{result.claim}: {result.verdict}. {result.note}".strip())


def _mutants(root: ET.Element, report: Report) -> None:
    suite = ET.SubElement(root, "testsuite", name="planted faults")
    for kill in report.kills or ():
        case = _new_case(suite, "planted faults", kill.name, 0.0)
        if not kill.killed:
            message = f"{kill.expected_check} did not see it ({kill.what})"
            ET.SubElement(case, "failure", message=_safe(message), type="survived")
    _totals(suite)


def _new_case(suite: ET.Element, group: str, name: str, seconds: float) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=_safe(group), name=_safe(name), time=f"{seconds:.3f}")


def _totals(suite: ET.Element) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("time", f"{sum(float(c.get('time', '0')) for c in suite):.3f}")


def _safe(text: str) -> str:
    return _FORBIDDEN.sub("�", text)
