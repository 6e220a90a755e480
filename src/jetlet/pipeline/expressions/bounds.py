"""Bounds: how large an integer can be that an expression gives.

Every integer has to fit into 64 bits. Where it must, because of what it is made of, nobody asks.
"""

from __future__ import annotations

from jetlet.pipeline.expressions.nodes import Call, Cast, Literal, Node, When
from jetlet.pipeline.expressions.operations import MAX_INT, MIN_INT, OPERATIONS

__all__ = ["Bounds", "bounds_of", "may_overflow", "slack_below"]

Bounds = tuple[int, int]
"""The least and the greatest value."""

_OF_PARTS: dict[str, Bounds] = {
    "len": (0, MAX_INT),
    "year": (1, 9999),
    "month": (1, 12),
    "day": (1, 31),
    "hour": (0, 23),
    "minute": (0, 59),
    "second": (0, 59),
    "millisecond": (0, 999),
    "microsecond": (0, 999_999),
    "weekday": (0, 6),
    "epoch_ms": (-(10**15), 10**15),
}


def bounds_of(node: Node) -> Bounds | None:
    """Between what the value is, if it is an integer; ``None`` if it may be any."""
    match node:
        case Literal(value):
            return (int(value), int(value)) if isinstance(value, int) else None
        case Call(operation, arguments):
            if operation in _OF_PARTS:
                return _OF_PARTS[operation]
            if OPERATIONS[operation].is_checked:
                bounds = _calculated(operation, arguments)
                if bounds is None or bounds[0] < MIN_INT or bounds[1] > MAX_INT:
                    return MIN_INT, MAX_INT  # beyond it fails
                return bounds
        case Cast(_, to) if to.kind == "int":
            return MIN_INT, MAX_INT
        case When(branches, otherwise):
            values = [*(bounds_of(value) for _, value in branches), bounds_of(otherwise)]
            known = [each for each in values if each is not None]
            if len(known) == len(values):
                return min(low for low, _ in known), max(high for _, high in known)
    return None


def may_overflow(node: Call) -> bool:
    """True if the result may be an integer that does not fit into 64 bits."""
    if not OPERATIONS[node.operation].is_checked:
        return False
    if node.operation != "floor_divide" and any(map(_is_no_integer, node.arguments)):
        return False
    bounds = _calculated(node.operation, node.arguments)
    return bounds is None or bounds[0] < MIN_INT or bounds[1] > MAX_INT


def _is_no_integer(node: Node) -> bool:
    """True if what is calculated with it is no integer either."""
    match node:
        case Literal(value):
            return not isinstance(value, int)
        case Cast(_, to):
            return to.kind not in ("int", "bool")
        case Call("divide", _):
            return True
        case Call(operation, arguments) if operation != "floor_divide":
            return OPERATIONS[operation].is_checked and any(map(_is_no_integer, arguments))
    return False


def _calculated(operation: str, arguments: tuple[Node, ...]) -> Bounds | None:
    given = [bounds_of(each) for each in arguments]
    if operation == "remainder":
        divisor = given[1]
        if divisor is None:
            return None
        return min(divisor[0] + 1, 0), max(divisor[1] - 1, 0)
    known = [each for each in given if each is not None]
    if len(known) < len(given):
        return None
    if operation == "negate":
        return -known[0][1], -known[0][0]
    if operation == "absolute":
        return 0, max(abs(known[0][0]), abs(known[0][1]))
    if operation == "round":
        return known[0] if len(known) == 1 else None
    (low, high), (other_low, other_high) = known
    if operation == "add":
        return low + other_low, high + other_high
    if operation == "subtract":
        return low - other_high, high - other_low
    if operation == "multiply":
        corners = [a * b for a in (low, high) for b in (other_low, other_high)]
        return min(corners), max(corners)
    if operation == "floor_divide":
        largest = max(abs(low), abs(high))
        return -largest - 1, largest
    return None


def slack_below(node: Call) -> tuple[Call, int] | None:
    """A node below this one that needs no check if this one's is stricter, and by how much.

    If ``x * 3 + 1`` is in some range, ``x * 3`` is within one that is larger by 1.
    """
    if node.operation == "negate":
        inner, by = node.arguments[0], 0
    elif node.operation in ("add", "subtract", "multiply"):
        left, right = node.arguments
        inner, constant = (right, left) if isinstance(left, Literal) else (left, right)
        if not isinstance(constant, Literal) or type(constant.value) is not int:
            return None
        if node.operation == "multiply" and not constant.value:
            return None
        by = 0 if node.operation == "multiply" else abs(constant.value)
    else:
        return None
    if not isinstance(inner, Call) or inner.operation == "round" or by > 2**60:
        return None
    return inner, by
