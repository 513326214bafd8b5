"""What a calendar can say to a question: today's date, and how far it is to a date that the question names."""

from __future__ import annotations

import re
from datetime import date, timedelta

__all__ = ["calendar_facts"]

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS).replace("sep(", "sep(?:t)?(")
_DATES = re.compile(
    rf"\b(?P<y>\d{{4}})-(?P<m>\d\d)-(?P<d>\d\d)\b"
    rf"|\b(?P<d1>\d{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?\s+(?P<m1>{_MONTH})\b\.?(?:,?\s+(?P<y1>\d{{4}}))?"
    rf"|\b(?P<m2>{_MONTH})\b\.?\s+(?P<d2>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s+(?P<y2>\d{{4}}))?",
    re.IGNORECASE,
)
_FEASTS = {
    "christmas eve": (12, 24), "christmas": (12, 25), "new year's eve": (12, 31), "new year": (1, 1),
    "halloween": (10, 31), "valentine": (2, 14),
}  # fmt: skip
"""The longer of two names that begin alike comes first."""
_NEAR = {"day after tomorrow": 2, "day before yesterday": -2, "tomorrow": 1, "yesterday": -1}


def calendar_facts(question: str, today: date) -> str:
    """``Today is Monday, 30 November 2026.``, and a sentence about the first other day that the question names.

    A day without a year is the next one of that name. Days are named as ``2026-12-24``, ``24 December``,
    ``December 24, 2026``, ``tomorrow``, ``yesterday``, or by a feast (Christmas, New Year, Halloween, Valentine).
    """
    told = f"Today is {_long(today)}."
    asked = _asked(question, today)
    if asked is None or asked == today:
        return told
    days = abs((asked - today).days)
    unit = "day" if days == 1 else "days"
    return f"{told} {_long(asked)} is {days} {unit} {'away' if asked > today else 'ago'}."


def _asked(question: str, today: date) -> date | None:
    match = next((found for found in _DATES.finditer(question) if found["m2"] != "may"), None)  # "you may 3 times"
    if match:
        found = match.groupdict()
        day = found["d"] or found["d1"] or found["d2"]
        month = found["m"] or found["m1"] or found["m2"]
        year = found["y"] or found["y1"] or found["y2"]
        number = int(month) if month.isdigit() else 1 + [name[:3] for name in _MONTHS].index(month[:3].lower())
        return _valid(int(year), number, int(day)) if year else _next(number, int(day), today)
    words = question.casefold().replace("\u2019", "'")
    for word, step in _NEAR.items():
        if word in words:
            return today + timedelta(days=step)
    return next((_next(*when, today) for feast, when in _FEASTS.items() if feast in words), None)


def _next(month: int, day: int, today: date) -> date | None:
    """The next such day from today on; 29 February may be years away."""
    candidates = (_valid(today.year + years, month, day) for years in range(9))
    return next((when for when in candidates if when is not None and when >= today), None)


def _valid(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def _long(when: date) -> str:
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    return f"{days[when.weekday()]}, {when.day} {_MONTHS[when.month - 1].capitalize()} {when.year}"
