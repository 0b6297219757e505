"""Reverse Polish notation."""

from .words import OPERATORS


def evaluate(text):
    stack = []
    for word in text.split():
        if word in OPERATORS:
            right, left = stack.pop(), stack.pop()
            stack.append(OPERATORS[word](left, right))
        else:
            stack.append(int(word))
    if len(stack) != 1:
        raise ValueError(f"{len(stack)} values are left of {text!r}")
    return stack[0]
