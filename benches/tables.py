#!/usr/bin/env python3
"""tables.py DIR: puts the tables that `make bench` collected in DIR into benches/README.md, with the day, the
commit and the machine that they were measured on. A part that was not measured keeps its table."""

import datetime
import pathlib
import re
import subprocess
import sys

collected = pathlib.Path(sys.argv[1])
page = pathlib.Path(__file__).with_name("README.md")


def machine():
    """The class of the machine: what its figures depend on, and nothing that names it."""
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    models = re.findall(r"^model name\s*: (.*)$", cpuinfo, re.M)
    memory = int(re.search(r"^MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.M)[1])
    architecture = subprocess.check_output(["uname", "-m"], text=True).strip()
    processor = f" ({models[0]})" if models else ""
    return f"{len(models) or 'some'} cores of {architecture}{processor}, {round(memory / 1048576)} GiB"


commit = subprocess.check_output(["git", "rev-parse", "--short=10", "HEAD"], text=True).strip()
if subprocess.check_output(["git", "status", "--porcelain", "--untracked-files=no"], text=True).strip():
    commit += " with changes"
measured = f"Measured on {datetime.date.today()} at {commit}, on {machine()}."

text = page.read_text()
for part in sorted(collected.glob("*.md")):
    begin, end = f"<!-- begin {part.stem} -->\n", f"<!-- end {part.stem} -->\n"
    if begin not in text or end not in text:
        sys.exit(f"tables.py: {page} has no place for the table '{part.stem}'")
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    text = f"{before}{begin}{measured}\n\n{part.read_text()}{end}{after}"
page.write_text(text)
