"""Mutants of a module: small faults of the kind that people make, one at a time.

``mutants(source, file)`` returns them in the order of the source. What is not worth a run is left out: types,
docstrings, text of all kinds, log records, assertions, ``__repr__``, decorators, arguments of an exception,
and options that are mostly a matter of taste (``KEYWORDS``).

The id of a mutant is made of what is changed and where, never of a line number, so that the mutants of two
revisions can be compared. Equal changes to equal statements of one function differ by a running number."""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

OPERATORS = (
    "compare", "negate", "not", "and/or", "arithmetic", "constant", "default", "min/max", "statement", "return",
    "raise", "loop", "case", "table",
)  # fmt: skip
"""What is changed; ``table`` is an edit of a table's rows, which ``tests/helpers/mutants.py`` makes."""
COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(), ast.In: ast.NotIn(), ast.NotIn: ast.In(),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.FloorDiv(), ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(), ast.Mod: ast.FloorDiv(),
}  # fmt: skip
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
KEYWORDS = {"strict", "stacklevel", "maxsize", "exist_ok", "daemon", "repr", "compare", "frozen", "slots", "init", "kw_only"}  # fmt: skip
QUIET = {"log", "logger", "warnings", "assert_never"}
"""Calls of these leave only text behind, or are never reached."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """``text`` in place of the bytes from ``start`` to ``end`` of ``file``.

    ``statement`` is the line at which the changed statement begins, and 0 where it runs at import; ``names``
    are then the names that show its effect."""

    id: str
    file: str
    where: str
    operator: str
    line: int
    statement: int
    names: tuple[str, ...]
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The source with this fault."""
        raw = source.encode()
        return (raw[: self.start] + self.text.encode() + raw[self.end :]).decode()

    def diff(self, source: str) -> str:
        """The lines that differ, after ``-`` and ``+``."""
        lines = difflib.unified_diff(source.splitlines(), self.applied(source).splitlines(), n=0, lineterm="")
        return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))

    def compiles(self, source: str) -> bool:
        """Whether the changed source is still a program."""
        try:
            compile(self.applied(source), self.file, "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True


def mutants(source: str, file: str) -> list[Mutant]:
    """All mutants of the module, ordered by place."""
    found = _Finder(source, file)
    found.visit(ast.parse(source))
    return sorted(found.mutants, key=lambda mutant: (mutant.start, mutant.end, mutant.operator))


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str, file: str) -> None:
        self._file, self._source = file, source
        self._begins = [0]  # the byte at which each line begins
        for line in source.encode().splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))
        self._where: list[str] = []
        self._statement: ast.stmt | None = None
        self._in_function = self._in_default = False
        self._names: tuple[str, ...] = ()
        self._seen = Counter[str]()
        self.mutants: list[Mutant] = []

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            kept = self._statement, self._names
            self._statement = node
            if not self._in_function and (bound := _bound(node)):
                self._names = bound
            if not _is_left_out(node):
                super().visit(node)
            self._statement, self._names = kept
        else:
            super().visit(node)

    # What has parts that are left out, or another scope

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._where.append(node.name)
        self._all(node.body)
        self._where.pop()

    def visit_FunctionDef(self, node: Function) -> None:
        outer, self._in_default = self._in_default, True
        kept, self._names = self._names, (node.name,)
        self._where.append(node.name)
        self._all([*node.args.defaults, *(given for given in node.args.kw_defaults if given is not None)])
        self._names, self._in_default = kept, outer
        if node.name not in ("__repr__", "__str__"):
            inner, self._in_function = self._in_function, True
            self._all(node.body)
            self._in_function = inner
        self._where.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._drop_assignment(node, node.target)
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self._condition(node.test)
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text."""

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in KEYWORDS:
            self.generic_visit(node)

    # Operators

    def visit_Compare(self, node: ast.Compare) -> None:
        for at, operator in enumerate(node.ops):
            operators = [*node.ops[:at], COMPARISONS[type(operator)], *node.ops[at + 1 :]]
            self._replace(node, "compare", ast.Compare(node.left, operators, node.comparators))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, "and/or", f"({ast.unparse(ast.BoolOp(other, node.values))})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, "not", f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = ARITHMETIC.get(type(node.op))
        if other is not None and not any(_is_sequence(side) for side in (node.left, node.right)):
            self._add(node, "arithmetic", f"({ast.unparse(ast.BinOp(node.left, other, node.right))})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        operator = "default" if self._in_default else "constant"
        if isinstance(node.value, bool):
            self._add(node, operator, str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, operator, str(node.value + 1))
        elif isinstance(node.value, float):
            self._add(node, operator, str(node.value * 2 or 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in OPPOSITES:
            self._add(node.func, "min/max", OPPOSITES[node.func.id])
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if isinstance(node.test, ast.Constant):
            self._all(node.body)
        else:
            self._condition(node.test)
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> None:
        if isinstance(node.body[0], ast.Expr) and _is_quiet(node.body[0].value):
            return
        assert isinstance(self._statement, ast.Match)
        if len(self._statement.cases) > 1:
            if node.guard is not None:
                self._add(node.guard, "case", "False")
            else:
                self._add(node.pattern, "case", f"({self._text(node.pattern)}) if False")
        if node.guard is not None:
            self._condition(node.guard)
        self.generic_visit(node)

    # Statements

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await | ast.Yield | ast.YieldFrom):
            self._add(node, "statement", "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._drop_assignment(node, node.targets[0])
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "statement", "pass")
        other = ARITHMETIC.get(type(node.op))
        if other is not None and not _is_sequence(node.value):
            self._replace(node, "arithmetic", ast.AugAssign(node.target, other, node.value))
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._add(node, "statement", "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            if not (isinstance(node.value, ast.Constant) and node.value.value is None):
                self._add(node, "return", "return None")
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add(node, "raise", "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, "loop", "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "loop", "break")

    # How one is made

    def _all(self, nodes: list[ast.stmt] | list[ast.expr]) -> None:
        for node in nodes:
            self.visit(node)

    def _condition(self, test: ast.expr) -> None:
        """The other branch; what ``compare`` and ``not`` make already is not made again."""
        opposite = ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn
        made = isinstance(test, ast.Compare) and isinstance(test.ops[0], opposite)
        if not made and not isinstance(test, ast.Constant | ast.UnaryOp):
            self._add(test, "negate", f"(not ({ast.unparse(test)}))")

    def _drop_assignment(self, node: ast.stmt, target: ast.expr) -> None:
        """What is kept nowhere; that a name is unknown, or that an object lacks a field, is found at once."""
        if isinstance(target, ast.Attribute | ast.Subscript) and "__init__" not in self._where:
            self._add(node, "statement", "pass")

    def _replace(self, node: ast.expr | ast.stmt, operator: str, other: ast.AST) -> None:
        self._add(node, operator, ast.unparse(other))

    def _add(self, node: ast.expr | ast.stmt | ast.pattern, operator: str, text: str) -> None:
        assert self._statement is not None
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        where = ".".join(self._where)
        head = ast.unparse(self._statement).split("\n")[0]
        change = "|".join((self._file, where, operator, head, ast.unparse(node), text))
        self._seen[change] += 1
        self.mutants.append(
            Mutant(
                id=hashlib.sha256(f"{change}|{self._seen[change]}".encode()).hexdigest()[:12],
                file=self._file, where=where, operator=operator, line=node.lineno,
                statement=self._statement.lineno if self._in_function else 0,
                names=() if self._in_function else self._names,
                start=self._begins[node.lineno - 1] + node.col_offset,
                end=self._begins[node.end_lineno - 1] + node.end_col_offset, text=text,
            )
        )  # fmt: skip

    def _text(self, node: ast.pattern) -> str:
        return ast.get_source_segment(self._source, node) or ast.unparse(node)


def _bound(node: ast.stmt) -> tuple[str, ...]:
    """The names that a statement at module or class level gives a value."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return tuple(
        name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)
    )


def _is_left_out(node: ast.stmt) -> bool:
    match node:
        case ast.Assert():
            return True
        case ast.Expr(value=value):
            return _is_quiet(value)
        case ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name))):
            return name in ("NotImplementedError", "AssertionError")
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in ("__all__", "__slots__")
    return False


def _is_quiet(value: ast.expr) -> bool:
    """Whether a call says something and does nothing."""
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name)) | ast.Name(id=name)):
            return name in QUIET
    return False


def _is_sequence(node: ast.expr) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def statements(tree: ast.Module) -> Iterator[tuple[ast.stmt, bool]]:
    """Each statement, and whether it is in a function, so that it does not run at import alone."""

    def below(node: ast.AST, in_function: bool) -> Iterator[tuple[ast.stmt, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield child, in_function
            yield from below(child, in_function or isinstance(child, Function))

    return below(tree, False)


def mentions(source: str) -> dict[str, set[int]]:
    """By name, the lines of the statements in functions that mention it."""
    found: dict[str, set[int]] = {}
    for statement, in_function in statements(ast.parse(source)):
        if in_function:
            for node in ast.walk(statement):
                name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)
                if isinstance(name, str):
                    found.setdefault(name, set()).add(statement.lineno)
    return found
