"""Polynomials over limits, with natural coefficients, and their notation.

A variable is a tuple of limit names and denotes the largest of them; nearly always it is one name. A
monomial is a sorted tuple of variables."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import gcd

LONG = 600
"""Maximum letters of a readable formula; the turn's longest has 374."""
_INNERMOST = re.compile(r"(?<!max)\([^()]*\)")

Variable = tuple[str, ...]
Monomial = tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Sum of coefficient times monomial. Coefficients are never 0."""

    terms: Mapping[Monomial, int] = field(default_factory=dict)

    @classmethod
    def constant(cls, value: int) -> Polynomial:
        """Return the polynomial that is always ``value``."""
        return cls({(): value} if value else {})

    @classmethod
    def largest(cls, limits: Iterable[str]) -> Polynomial:
        """Return the largest of some limits; one name is the limit itself."""
        return cls({(tuple(sorted(set(limits))),): 1})

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, factor in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Polynomial(terms)

    def __mul__(self, other: Polynomial) -> Polynomial:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = tuple(sorted((*left, *right)))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Polynomial(terms)

    def value(self, limits: Mapping[str, int]) -> int:
        """Return the value for these limits. Raises ``KeyError`` for a limit that is not given."""
        total = 0
        for monomial, factor in self.terms.items():
            for variable in monomial:
                factor *= max(limits[name] for name in variable)
            total += factor
        return total

    @property
    def variables(self) -> list[Variable]:
        """Its variables, sorted."""
        return sorted({variable for monomial in self.terms for variable in monomial})

    def quotient(self, variable: Variable) -> Polynomial:
        """Return the polynomial by which ``variable`` is multiplied."""
        return Polynomial(
            {_without(m, variable): factor for m, factor in self.terms.items() if variable in m}
        )

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __str__(self) -> str:
        return Printer().text(self)


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints polynomials with common factors taken out.

    ``sums`` names sums of variables ("blocks"), and ``maxima`` names variables of several limits. A name is
    used wherever it fits; ``legend`` then explains it. ``taken`` are names already in use."""

    sums: Mapping[str, tuple[Variable, ...]] = field(default_factory=dict)
    maxima: Mapping[str, Variable] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()

    def text(self, polynomial: Polynomial) -> str:
        """Return the polynomial as text, with known sums by name."""
        for name, variables in self.sums.items():
            polynomial = _substitute(polynomial, name, variables)
        return self._sum(polynomial, {})

    def named(
        self, polynomials: Iterable[Polynomial], sums: dict[str, str] | None = None
    ) -> tuple[list[str], list[str]]:
        """Return polynomials as text, and the legend of the names in them. If a text is too long to read,
        sums that occur repeatedly get names: "s1 = 1 + rounds", "s2 = s1 + tries·s1". ``sums`` contains the
        names already given and receives the new ones."""
        texts = [self.text(polynomial) for polynomial in polynomials]
        sums = {} if sums is None else sums
        if max(map(len, texts), default=0) > LONG:
            texts = [self._name_sums(text, sums) for text in texts]
        words = _words(" ".join(texts))
        for name in reversed(sums):  # a sum consists of earlier ones
            words |= _words(sums[name]) if name in words else set()
        legend = [f"{name} = {meaning}" for name, meaning in sums.items() if name in words]
        return texts, [*legend, *self.legend(" ".join(words))]

    def _name_sums(self, text: str, sums: dict[str, str]) -> str:
        """Replace the sums in brackets that occur more than once by names, the innermost first."""
        while True:
            known = {f"({meaning})": name for name, meaning in sums.items()}
            counts = Counter(_INNERMOST.findall(text))
            again = [inner for inner, count in counts.items() if count > 1 or inner in known]
            if not again:
                return text
            for inner in again:
                if inner not in known:
                    names = (f"s{number}" for number in itertools.count(1))
                    known[inner] = next(name for name in names if name not in {*sums, *self.taken})
                    sums[known[inner]] = inner[1:-1]
                text = text.replace(inner, known[inner])

    def legend(self, text: str) -> list[str]:
        """Return the definitions of the names that occur in ``text``."""
        defined = {name: " + ".join(map(self._name, parts)) for name, parts in self.sums.items()}
        defined |= {name: f"max({', '.join(variable)})" for name, variable in self.maxima.items()}
        return [f"{name} = {meaning}" for name, meaning in defined.items() if name in _words(text)]

    def _sum(self, polynomial: Polynomial, known: dict[Polynomial, str]) -> str:
        """``known`` caches the texts of parts, which a long formula repeats."""
        if polynomial not in known:
            known[polynomial] = self._sum_of(polynomial, known)
        return known[polynomial]

    def _sum_of(self, polynomial: Polynomial, known: dict[Polynomial, str]) -> str:
        pieces: list[tuple[int, str]] = []
        while True:
            factors, quotient = _common_factor(polynomial)
            if not factors:
                break
            total = " + ".join(map(self._name, factors))
            number = gcd(*quotient.terms.values())
            inner = self._sum(Polynomial({m: n // number for m, n in quotient.terms.items()}), known)
            outer = f"({total})" if len(factors) > 1 else total
            inner = f"({inner})" if _is_sum(inner) else inner
            pieces.append((2, f"{number}·{outer}·{inner}" if number > 1 else f"{outer}·{inner}"))
            taken = {tuple(sorted((*m, v))): n for m, n in quotient.terms.items() for v in factors}
            polynomial = Polynomial(
                {m: n - taken.get(m, 0) for m, n in polynomial.terms.items() if n > taken.get(m, 0)}
            )
        pieces += [(len(m) if m else -1, self._product(m, n)) for m, n in polynomial.terms.items()]
        return " + ".join(text for _, text in sorted(pieces)) or "0"

    def _product(self, monomial: Monomial, factor: int) -> str:
        names = [self._name(variable) for variable in monomial]
        return "·".join([str(factor)] * (factor != 1 or not names) + names)

    def _name(self, variable: Variable) -> str:
        if len(variable) == 1:
            return variable[0]
        named = [name for name, meaning in self.maxima.items() if meaning == variable]
        return named[0] if named else f"max({', '.join(variable)})"


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _is_sum(text: str) -> bool:
    """Return whether a "+" occurs outside all brackets."""
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "+" and not depth:
            return True
    return False


def _without(monomial: Monomial, variable: Variable) -> Monomial:
    position = monomial.index(variable)
    return (*monomial[:position], *monomial[position + 1 :])


def _substitute(polynomial: Polynomial, name: str, variables: tuple[Variable, ...]) -> Polynomial:
    """Replace the sum of ``variables`` by ``name`` as often as that sum is a factor."""
    quotients = [Counter(polynomial.quotient(variable).terms) for variable in variables]
    common = quotients[0]
    for quotient in quotients[1:]:
        common &= quotient
    terms = Counter(polynomial.terms)
    for monomial, factor in common.items():
        for variable in variables:
            terms[tuple(sorted((*monomial, variable)))] -= factor
        terms[tuple(sorted((*monomial, (name,))))] += factor
    return Polynomial({monomial: factor for monomial, factor in terms.items() if factor})


def _common_factor(polynomial: Polynomial) -> tuple[list[Variable], Polynomial]:
    """Return the variables that share a quotient of at least two terms and cover the most terms, and that
    quotient; ([], 0) if there are none."""
    best: tuple[list[Variable], Polynomial] = ([], Polynomial())
    groups: dict[frozenset[tuple[Monomial, int]], list[Variable]] = {}
    for variable in polynomial.variables:
        groups.setdefault(frozenset(polynomial.quotient(variable).terms.items()), []).append(variable)
    for terms, variables in groups.items():
        squared = any(variable in monomial for monomial, _ in terms for variable in variables)
        chosen = variables[:1] if squared else variables
        if len(terms) > 1 and len(terms) * len(chosen) > len(best[1].terms) * len(best[0]):
            best = (chosen, Polynomial(dict(terms)))
    return best
