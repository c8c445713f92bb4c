"""The measures of scripts/weight.py, on code that is counted by hand."""

from __future__ import annotations

import ast

import weight

CODE = '''
"""Two lines
of docstring."""
LEVEL = -2 * 0.5
NAMES = ("a",)
_least: int = 3


class A:
    def f(self, xs):  # 1, if 2, and 3, loop 4, comprehension 5 and its condition 6, else-if 7
        """Docstring."""
        if xs and self.engine.secure:
            for x in xs:
                print([y for y in x if y])

        elif self.server.engine.halves:

            def inner():
                if x:
                    assert x


def told(nobody):
    try:
        return nobody
    except ValueError:
        return 2 if nobody else 3
'''
TREE = ast.parse(CODE)


def test_complexity_of_functions_without_those_in_them() -> None:
    assert {node.name: 1 + weight.complexity(node) for node in weight.functions(TREE)} == {"f": 7, "told": 3}


def test_lines_of_code_leave_out_what_is_not_code() -> None:
    assert weight.code_lines(CODE, TREE) == 17


def test_constants_flags_and_words() -> None:
    assert weight.number_constants(TREE) == 1
    assert weight.flag_reads(TREE) == 2
    assert weight.WORDS.findall(CODE) == ["told", "nobody", "nobody", "nobody"]
