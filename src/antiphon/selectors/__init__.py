"""Selectors: conditions on messages, in the SQL-92 subset of Jakarta Messaging 3.1.

tokens       text -> words, literals and signs, each with its place
parser       tokens -> one condition, within limits
conditions   the parts of a condition, and their truth for many rows at once
vectors      values of many rows, and Java's arithmetic and comparisons on them
rows         headers and properties of a batch as vectors
like         the patterns of LIKE
selector     `compile_selector` and `Selector`
"""

from antiphon.selectors.selector import Selector, compile_selector

__all__ = ["Selector", "compile_selector"]
