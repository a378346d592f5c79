"""What of a machine can be measured, for people."""

from collections.abc import Sequence
from typing import Any

from joulecast.measure.doctor import Diagnosis, Finding
from joulecast.report.tables import Sheet


def doctor_page(d: Diagnosis) -> list[Sheet | str]:
    """Return sensors, software and devices, then what would help."""
    page: list[Sheet | str] = [
        f"{d.host['hostname']}: {d.host['cpu']}, {d.host['n_cpus']} CPUs, {d.host['os']}",
        "",
    ]
    groups = (("sensors", d.sensors), ("software", d.software), ("devices", d.devices))
    page += [_sheet(title, findings) for title, findings in groups]
    remedies = [f for _, findings in groups for f in findings if f.remedy]
    if remedies:
        page.append("what would help:")
        page += [f"  {finding.what}: {finding.remedy}" for finding in remedies]
    return page


def _sheet(title: str, findings: Sequence[Finding]) -> Sheet:
    rows = tuple(("ok" if f.works else "no", f.what, f.says) for f in findings)
    return Sheet(title=title, columns=("", "", ""), rows=rows)


def doctor_rows(d: Diagnosis) -> list[dict[str, Any]]:
    """Return one flat row per finding."""
    groups = (("sensor", d.sensors), ("software", d.software), ("device", d.devices))
    return [
        {"kind": kind, "what": f.what, "works": f.works, "says": f.says, "remedy": f.remedy or None}
        for kind, findings in groups
        for f in findings
    ]
