"""Prints the tables of benchmarks in Markdown, with the machine and the commit."""

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

APP = Path(__file__).parents[1]


def print_head(*titles: object) -> None:
    """Print the first row of a table, and the rule below it."""
    print(table_head(titles), flush=True)


def print_row(*cells: object) -> None:
    """Print a row of a table without buffering."""
    print(table_row(cells), flush=True)


def table_head(titles: Iterable[object]) -> str:
    """The first row of a table, and the rule below it."""
    titles = list(titles)
    return f"{table_row(titles)}\n{table_row('---' for _ in titles)}"


def table_row(cells: Iterable[object]) -> str:
    """A row of a table; a "|" in a cell, as in a row's name, adds no column."""
    return f"| {' | '.join(str(each).replace('|', '&#124;') for each in cells)} |"


def commit_and_machine() -> str:
    """The commit and the machine of a measurement."""
    return f"commit {commit()}, {machine()}"


def commit() -> str:
    """The commit that is checked out, marked if files differ from it."""
    short, changes = _said("git rev-parse --short HEAD"), _said("git status --porcelain")
    if not (APP / ".git").exists() or short is None or changes is None:
        return "unknown"
    return short.strip() + (" + changes" if changes else "")


def machine() -> str:
    """This machine's processor, cores and GPUs."""
    details = Path("/proc/cpuinfo")
    named = re.search("model name\\s*: (.+)", details.read_text()) if details.exists() else None
    processor = named[1] if named else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {', '.join(gpu_names()) or 'no GPU'}"


def gpu_names() -> list[str]:
    """The NVIDIA GPUs of this machine."""
    return (_said("nvidia-smi --query-gpu=name --format=csv,noheader") or "").splitlines()


def _said(command: str) -> str | None:
    """The output of a program; None if it is missing, or cannot be used by this user."""
    try:
        done = subprocess.run(command.split(), cwd=APP, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout
