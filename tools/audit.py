"""Ask pip-audit about every installed package, and say of how many it knew anything.

    python tools/audit.py

pip-audit itself ends with "No known vulnerabilities found" also where it could ask nobody. This ends with 1 for a
vulnerability and with 2 if packages could not be looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

#: Not on PyPI so far.
OURS = {"calcode", "calcode-demo-data"}


def verdict(packages: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """The exit code and the lines for what pip-audit found out about packages."""
    theirs = [entry for entry in packages if entry["name"] not in OURS]
    known = [entry for entry in theirs if "skip_reason" not in entry]
    lines = [
        f"{entry['name']} {entry['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'none'}"
        for entry in known
        for found in entry["vulns"]
    ]
    code = 1 if lines else 0
    lines.append(f"Looked up {len(known)} of {len(theirs)} packages; {len(lines)} known vulnerabilities.")
    if len(known) < len(theirs):
        missing = [entry["name"] for entry in theirs if "skip_reason" in entry]
        lines.append(f"NOT AUDITED: {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''} (no data: offline?)")
        code = code or 2
    return code, lines


def main() -> None:
    """Ask, print, and end with the exit code."""
    command = [sys.executable, "-m", "pip_audit", "--skip-editable", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        sys.exit(f"NOT AUDITED: pip-audit gave no answer\n{done.stderr[-2000:]}")
    code, lines = verdict(packages)
    print("\n".join(lines))
    sys.exit(code)


if __name__ == "__main__":
    main()
