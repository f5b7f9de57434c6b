"""Computes completion candidates for a command line from the argparse parsers. Does no IO.

There is no second list of commands, flags or values, because candidates are what a parser accepts. Metavars
mark the values that only a cluster or a kubeconfig can list (``Names``).
"""

from __future__ import annotations

import argparse
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusterset.model.pod.eligibility import KNOWN_CONTROLLERS
from controller_runtime.process.flags import boolean

ParserOf = Callable[[str], argparse.ArgumentParser | None]
"""Maps a command to the parser of its flags; None: it takes no flags."""
_FILE_METAVARS = frozenset({"FILE", "PATH", "DIR"})
_LEVEL = "LEVEL"
_LISTS: Mapping[str, Sequence[str]] = {"CONTROLLERS": KNOWN_CONTROLLERS}
"""Values by metavar, of which several may be given, separated by commas."""


class Names(enum.Enum):
    """Metavars of values that only a cluster or a kubeconfig can list."""

    CONTEXTS = "CONTEXT"
    NAMESPACES = "NS"
    VIRTUAL_NODES = "NODE"
    LOWER_CLUSTERS = "CLUSTER"
    CLUSTERS_AND_NODES = "CLUSTER|NODE"
    LABELS = "LABELS"
    """Labels of virtual nodes."""
    TARGETS = "TYPE[/NAME]"
    OBJECTS = "[NAMESPACE/]NAME"
    """Objects that ``diagnose`` accepts."""


_NAMES = {each.value: each for each in Names}


@dataclass(frozen=True, slots=True)
class Question:
    """A request for names from a cluster or a kubeconfig."""

    names: Names
    prefix: str
    """The typed start of the name."""
    dest: str
    """argparse dest of the flag or positional argument that is being typed."""
    given: Mapping[str, Sequence[str]]
    """Values typed so far, by argparse's dest; quotes, variables and ``~`` are not expanded."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One completion of the current word."""

    value: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of a completion."""

    candidates: Sequence[Candidate] = field(default_factory=tuple)
    files: bool = False
    """Whether the value is a file name, which the shell completes."""
    question: Question | None = None
    """Names to request instead of ``candidates``; None: the candidates are complete."""


_NOTHING = Completion()


def complete(
    words: Sequence[str], *, commands: Mapping[str, str], parser_of: ParserOf, default: str = ""
) -> Completion:
    """Return the completions of the last word.

    Args:
        words: words after the program's name; the last one is being typed and may be empty.
        commands: every command with its purpose.
        parser_of: returns a command's parser.
        default: command that is used if flags come without a command; empty: there is none.
    """
    *before, current = words or [""]
    if not before and not current.startswith("-"):
        return _matching(current, (Candidate(name, purpose) for name, purpose in commands.items()))
    command, rest = (before[0], before[1:]) if before else ("", [])
    if not command or command.startswith("-"):
        command, rest = default, before
    parser = parser_of(command) if command in commands else None
    return _NOTHING if parser is None else _Line(parser).complete(rest, current)


class _Line:
    """Parses a command's words as argparse does, up to the word that is being typed."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._enter(parser)
        self._used: set[str] = set()
        self._pending: argparse.Action | None = None
        """The flag whose value comes next; None: no value is expected."""
        self._only_positionals = False
        self._given: dict[str, list[str]] = {}

    def complete(self, before: Sequence[str], current: str) -> Completion:
        """Return the completions of the word that is being typed."""
        for word in before:
            self._read(word)
        if self._pending is not None:
            return self._values(self._pending, current)
        if current.startswith("-") and not self._only_positionals:
            flag, equals, value = current.partition("=")
            if not equals:
                return _matching(current, self._flags())
            action = self._options.get(flag)
            return _NOTHING if action is None else self._values(action, value)
        positional = self._positional()
        return _NOTHING if positional is None else self._values(positional, current)

    def _enter(self, parser: argparse.ArgumentParser) -> None:
        # argparse has no public API for a parser's arguments; these names have not changed since Python 2.7.
        self._options: Mapping[str, argparse.Action] = parser._option_string_actions  # noqa: SLF001
        self._positionals = parser._get_positional_actions()  # noqa: SLF001
        self._place = 0

    def _read(self, word: str) -> None:
        if self._pending is not None:
            self._note(self._pending, word)
            self._pending = None
        elif word == "--":
            self._only_positionals = True
        elif word.startswith("-") and word != "-" and not self._only_positionals:
            flag, equals, value = word.partition("=")
            action = self._options.get(flag)
            if action is not None:
                if equals:
                    self._note(action, value)
                self._used.update(action.option_strings)
                # nargs 0 takes no value, and "?" only an optional one, so the next word is not taken as a
                # value.
                self._pending = action if not equals and action.nargs not in {0, "?"} else None
        else:
            self._take(word)

    def _take(self, word: str) -> None:
        positional = self._positional()
        if isinstance(positional, argparse._SubParsersAction):  # noqa: SLF001
            if word in positional.choices:
                self._enter(positional.choices[word])
        elif positional is not None:
            self._note(positional, word)
            self._place += positional.nargs not in {"*", "+"}

    def _note(self, action: argparse.Action, word: str) -> None:
        self._given.setdefault(action.dest, []).append(word)

    def _positional(self) -> argparse.Action | None:
        return self._positionals[self._place] if self._place < len(self._positionals) else None

    def _values(self, action: argparse.Action, prefix: str) -> Completion:
        metavar = str(action.metavar)
        names = _NAMES.get(metavar)
        if action.choices is not None and not (names is Names.TARGETS and "/" in prefix):
            return _matching(prefix, map(Candidate, map(str, action.choices)))
        if names is not None:
            return Completion(question=Question(names, prefix, action.dest, self._given))
        if action.type is boolean:
            return _matching(prefix, (Candidate("true"), Candidate("false")))
        if metavar in _LISTS:
            before, comma, _ = prefix.rpartition(",")
            rest = (word for word in _LISTS[metavar] if word not in before.split(","))
            return _matching(prefix, (Candidate(before + comma + word) for word in rest))
        if metavar == _LEVEL:
            from controller_runtime import log  # noqa: PLC0415 - structlog takes longer than all else

            return _matching(prefix, map(Candidate, log.LEVELS))
        return Completion(files=metavar in _FILE_METAVARS)

    def _flags(self) -> Iterator[Candidate]:
        for flag, action in sorted(self._options.items()):
            again = isinstance(action, argparse._AppendAction)  # noqa: SLF001
            if action.help != argparse.SUPPRESS and (again or flag not in self._used):
                yield Candidate(flag, _one_line(action.help or ""))


def _matching(prefix: str, candidates: Iterator[Candidate] | Sequence[Candidate]) -> Completion:
    return Completion([candidate for candidate in candidates if candidate.value.startswith(prefix)])


def _one_line(text: str) -> str:
    return " ".join(text.replace("%%", "%").split())
