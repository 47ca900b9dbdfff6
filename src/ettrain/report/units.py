"""Integer nanoseconds, instants and foreign texts -> what a person reads. No layout here.

Numbers are rounded at this last moment only, and never to a lie: what is not all is never '100.0%', what is not nothing never '0.0%'.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

_NUMBER_AND_UNIT: Final = re.compile(r"(\d[dhm]?|±) (?=\d\dh|\d\dm|\d\ds|ms\b|µs\b|s\b|\d+[.\d]* (?:s|ms)\b)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NS: Final = 1_000_000_000


def seconds(ns: int) -> float:
    """Seconds as the float nearest to the exact value."""
    return ns / NS


def duration(ns: int) -> str:
    """A length of time in two units at most: '350 ms', '41.2 s', '2m 10s', '1h 02m', '3d 04h'."""
    if ns < 0:
        return "-" + duration(-ns)
    if ns == 0:
        return "0 s"
    if ns < 1_000_000:
        return f"{max(1, ns // 1000)} µs"
    if ns < 999_500_000:
        return f"{(ns + 500_000) // 1_000_000} ms"
    tenths = (ns + 50_000_000) // 100_000_000
    if tenths < 600:
        return f"{tenths // 10}.{tenths % 10} s"
    whole = (ns + NS // 2) // NS
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    minutes = (whole + 30) // 60
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = (minutes + 30) // 60
    return f"{hours // 24}d {hours % 24:02d}h"


def percent(part: int, whole: int) -> str:
    """Share with one decimal; '-' where there is no whole."""
    if not whole:
        return "-"
    tenths = (2000 * part + whole) // (2 * whole)
    if part and not tenths:
        return "<0.1%"
    if tenths == 1000 and part < whole:
        tenths = 999
    return f"{tenths // 10}.{tenths % 10}%"


@dataclass(frozen=True, slots=True)
class DeviceUnit:
    """What device time is told in: one unit for a whole table, so that its rows can be compared."""

    title: str
    ns: int

    def show(self, device_ns: int) -> str:
        """An amount, without the unit."""
        amount = device_ns / self.ns
        return f"{amount:,.0f}" if amount >= 1000 else f"{amount:.1f}" if amount >= 10 else f"{amount:.2f}"


def device_unit(whole_ns: int) -> DeviceUnit:
    """Device-hours, but device-seconds where all of it is less than ten hours."""
    return DeviceUnit("device-h", 3600 * NS) if whole_ns >= 36_000 * NS else DeviceUnit("device-s", NS)


def instant(ns: int) -> str:
    """ISO 8601 in UTC, microseconds; `ns` since the epoch."""
    return (_EPOCH + timedelta(microseconds=ns // 1000)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def day_and_time(ns: int) -> str:
    """'2025-11-29 16:01:02 UTC'."""
    return (_EPOCH + timedelta(microseconds=ns // 1000)).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(count: int) -> str:
    """Bytes in powers of 1000: '512 B', '4.1 kB', '120 MB'."""
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}" if unit != "B" and amount < 99.95 else f"{amount:.0f} {unit}"


def plural(count: int, noun: str) -> str:
    """'1 rank', '2 ranks', '1,024 ranks'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def unbroken(text: str) -> str:
    """The text with no-break spaces between a number and its unit."""
    return _NUMBER_AND_UNIT.sub("\\1\u00a0", text)


def clean(text: str) -> str:
    """A foreign text on one line: no control or direction characters, which could redraw a terminal or forge a page."""
    shown = "".join(char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text)
    return " ".join(shown.split())


def cells(text: str) -> int:
    """Terminal columns that a clean text takes."""
    return sum(_cell(char) for char in text)


def clip(text: str, width: int) -> str:
    """The text cut to that many columns, the cut shown as '…'."""
    if cells(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += _cell(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…" if width > 0 else ""


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly that many columns, cut if need be; `right` aligns it to the right."""
    cut = clip(text, width)
    space = " " * (width - cells(cut))
    return space + cut if right else cut + space


def _cell(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
