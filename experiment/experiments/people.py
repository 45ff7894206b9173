"""A long prefix that many questions share: a table of people who do not exist."""

from __future__ import annotations

from experiment.workload.requests import check_size

_FIRST = ("Mira", "Tomas", "Ingrid", "Kenji", "Salma", "Bruno", "Oona", "Pavel", "Lucia", "Dev")
_LAST = ("Holt", "Varga", "Sorensen", "Okafor", "Lindqvist", "Marchetti")
_TRADES = ("baker", "pilot", "nurse", "potter", "surveyor", "cellist", "welder")
_CITIES = ("Bergen", "Porto", "Sapporo", "Accra", "Tallinn", "Lima", "Quebec", "Cork")
_ROW_TOKENS = 20  # every row has more, whatever the tokenizer
_INTRODUCTION = "You answer questions about the people in this table.\n"
_HEAD = "| No. | Name | Age | Trade | City | Street | Telephone | Mail |\n"
_ASKED = ("How old is {name}?", "What does {name} do?", "Where does {name} live?")


def name(index: int) -> str:
    """Name of a person; no two of the first 30 are alike."""
    return f"{_FIRST[index % len(_FIRST)]} {_LAST[(index + index // len(_FIRST)) % len(_LAST)]}"


def table(rows: int) -> str:
    """The table with so many people."""
    lines = [_row(index) for index in range(rows)]
    return _INTRODUCTION + _HEAD + "".join(lines)


def questions(rows: int, count: int) -> list[str]:
    """So many prompts: the same table, then a question about somebody in it.

    Raises:
        UserError: more than a run holds.
    """
    check_size(max(rows, count), _ROW_TOKENS * rows * count)
    shared = table(rows)
    asked = [_ASKED[each % len(_ASKED)].format(name=name(each * 7 % rows)) for each in range(count)]
    return [f"{shared}Question: {question}\nAnswer:" for question in asked]


def _row(index: int) -> str:
    age = 21 + index * 13 % 58
    trade, city = _TRADES[index % len(_TRADES)], _CITIES[index % len(_CITIES)]
    street = f"{3 + index * 17 % 90} {_LAST[index * 5 % len(_LAST)]} Road"
    phone = f"555-{1000 + index * 271 % 9000}"
    mail = name(index).lower().replace(" ", ".") + "@example.org"
    cells = (index + 1, name(index), age, trade, city, street, phone, mail)
    return "".join(f"| {cell} " for cell in cells) + "|\n"
