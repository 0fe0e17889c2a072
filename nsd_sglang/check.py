"""`nsd-sglang check`: the table of touched SGLang symbols against the installed sglang."""

from __future__ import annotations

from nsd_sglang import seams
from nsd_sglang.seam import drift


def run() -> int:
    """Print the table; 0 when nothing has changed, 1 otherwise."""
    print(f"sglang {seams.installed_version() or 'not installed'}. {seams.SUPPORTED}")
    rows = seams.table()
    width = max(len(seam.target) for seam in rows)
    changed = 0
    for seam in rows:
        reason = drift(seam)
        changed += reason is not None
        print(f"{'ok     ' if reason is None else 'CHANGED'} {seam.use:8} {seam.target:{width}} {seam.why}")
        if reason is not None:
            print(f"        {reason}")
    version = seams.version_drift()
    if version is None and not changed:
        print(f"{len(rows)} symbols, none changed: NSD registers")
        return 0
    print(f"{len(rows)} symbols, {changed} changed{'; ' + version if version else ''}: NSD does not register")
    return 1
