"""What JSON has to look like, as data, and the first place where it does not.

A form is a :class:`Rule`, ``[form]`` (a list of such), ``{name: form}`` (an object that has these
names, and maybe others) or ``{EACH: form}`` (an object of any names).
"""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

EACH = object()
LONGEST_VALUE = 60  # characters of a wrong value that an error shows


@dataclasses.dataclass(frozen=True)
class Rule:
    """A value that is ``words``, such as "a string"."""

    words: str
    holds: Callable[[Any], bool]

    def __or__(self, other: "Rule") -> "Rule":
        return Rule(f"{self.words} or {other.words}", lambda x: self.holds(x) or other.holds(x))


def one_of(*texts: str) -> Rule:
    return Rule(" or ".join(texts), lambda x: isinstance(x, str) and x in texts)


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _positive(x: Any) -> bool:
    try:
        return _number(x) and 0 < float(x) < math.inf
    except OverflowError:  # of a whole number
        return False


NULL = Rule("null", lambda x: x is None)
TEXT = Rule("a string", lambda x: isinstance(x, str))
FLAG = Rule("true or false", lambda x: isinstance(x, bool))
NUMBER = Rule("a number", _number)
POSITIVE = Rule("a number above 0", _positive)


def load(text: bytes) -> Any:
    """What JSON in UTF-8 holds; ValueError if it is none."""
    try:
        return json.loads(text.decode())
    except RecursionError as error:
        raise ValueError("no JSON: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error


def check(value: Any, form: Any, whole: str, place: str = "") -> None:
    """ValueError for the first part of ``value`` that is not as ``form`` says.

    ``whole`` is what the value as a whole is called. The error names a part as ``cases[0].name``.
    """
    match form:
        case Rule():
            _must(form.holds(value), value, form.words, whole, place)
        case [each]:
            _must(isinstance(value, list), value, "a list", whole, place)
            for index, part in enumerate(value):
                check(part, each, whole, f"{place}[{index}]")
        case dict():
            _must(isinstance(value, dict), value, "an object", whole, place)
            if EACH in form:
                form = dict.fromkeys(value, form[EACH])
            if missing := form.keys() - value.keys():
                raise ValueError(f"no {', '.join(sorted(missing))} in {place or whole}")
            for name, part in form.items():
                check(value[name], part, whole, f"{place}.{name}" if place else name)


def _must(holds: bool, value: Any, words: str, whole: str, place: str) -> None:
    if holds:
        return
    shown = json.dumps(value, ensure_ascii=False)
    if len(shown) > LONGEST_VALUE:
        shown = f"{shown[: LONGEST_VALUE - 1]}…"
    raise ValueError(f"{place or whole} is {shown}: must be {words}")
