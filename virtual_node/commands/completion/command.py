"""``virtual-node completion bash|zsh|fish``: prints a script that completes commands, flags and values.

The scripts run ``virtual-node __complete WORDS``, as kubectl's do, so they stay current after an update. The
output has cobra's format: a candidate per line, a tab, its description, and on the last line a directive,
which is a sum of bits. Bit 4 means no file names, and bit 2 means no space after the word. kubectl runs
``kubectl_complete-virtual_node`` with the same protocol.

Candidates for a command line are computed from the argparse parsers. There is no second list of commands, flags or
values, because candidates are what a parser accepts. Metavars mark the values that only a cluster or a kubeconfig can
list (``Names``).
"""

from __future__ import annotations

import argparse
import enum
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controller_runtime.apimachinery import readable
from controller_runtime.process import terminal
from controller_runtime.process.flags import boolean
from controller_runtime.process.terminal import Parser
from virtual_node.config import program

ParserOf = Callable[[str], argparse.ArgumentParser | None]
"""Maps a command to the parser of its flags; None: it takes no flags."""
_FILE_METAVARS = frozenset({"FILE", "PATH", "DIR"})
_CONTROLLERS = "CONTROLLERS"
_LEVEL = "LEVEL"


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
        if metavar == _CONTROLLERS:  # several, separated by commas
            from clusterset.config import KNOWN_CONTROLLERS  # noqa: PLC0415 - only the daemon has this flag

            before, comma, _ = prefix.rpartition(",")
            rest = (word for word in KNOWN_CONTROLLERS if word not in before.split(","))
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


_NO_SPACE, _NO_FILES = 2, 4
"""cobra's ShellCompDirectiveNoSpace and ShellCompDirectiveNoFileComp."""


def main(argv: Sequence[str]) -> int:
    """Print the completion script of a shell; return 0."""
    options = parser().parse_args(argv)
    terminal.block(SCRIPTS[options.shell].strip())
    return 0


def parser() -> Parser:
    """Return the command's parser."""
    own = Parser(
        program.name(),
        "completion",
        about="Print a script that completes commands, flags and values. The script runs the program for the "
        "candidates, so it stays valid after an update.",
        examples=tuple((f"In {shell}", f"completion {shell}") for shell in SCRIPTS),
        notes="bash and zsh: source <(virtual-node completion SHELL); fish: virtual-node completion fish | source. "
        "docs/reference/cli.md says where to put that.",
    )
    own.add_argument("shell", choices=tuple(SCRIPTS), help="the shell that the script is for")
    return own


def answer(words: Sequence[str], *, commands: Mapping[str, str], parser_of: ParserOf) -> int:
    """Print the candidates for the last word; return 0.

    Args:
        words: words after the program's name; the last one is being typed and may be empty.
        commands: every command with its purpose.
        parser_of: returns the parser of a command; None: it takes no flags.
    """
    found = complete(
        words, commands=commands, parser_of=parser_of, default="" if program.is_plugin() else "run"
    )
    candidates, ended = found.candidates, True
    if found.question is not None:
        from virtual_node.commands.completion import names  # noqa: PLC0415 - flags are completed without requests

        candidates, ended = names.ask(found.question)
    for candidate in candidates:
        words = [readable.one_line(text) for text in (candidate.value, candidate.description) if text]
        terminal.block("\t".join(words))
    going_on = bool(candidates) and all(each.value.endswith("/") for each in candidates)
    terminal.line(f":{(0 if found.files else _NO_FILES) | (_NO_SPACE if going_on else 0)}")
    if not ended:
        # At exit the interpreter would wait for threads of requests that nothing needs any more.
        sys.stdout.flush()
        os._exit(0)
    return 0


_BASH = r"""
# bash completion for virtual-node. To use it: source <(virtual-node completion bash)

__virtual_node_complete() {
    local rest="${COMP_LINE:0:COMP_POINT}" answer directive line gap word typed flag="" head
    local -a words=()
    local index last=-1
    COMPREPLY=()
    # bash cuts words at = : and @ too; the program wants them as they were typed, up to the cursor.
    for ((index = 0; index <= COMP_CWORD; index++)); do
        gap="${rest%%[![:space:]]*}"
        rest="${rest#"$gap"}"
        word="${COMP_WORDS[index]}"
        [[ $index -eq $COMP_CWORD ]] && word="$rest"
        rest="${rest#"$word"}"
        if [[ $gap || $last -lt 0 ]]; then
            last=$((last + 1))
            words[last]="$word"
        else
            words[last]+="$word"
        fi
    done
    typed="${words[last]}"
    # What is before the piece that bash replaces stays on the line.
    [[ ${word//[=:@]/} ]] || word=""
    head="${typed%"$word"}"
    [[ $typed == -*=* ]] && flag="${typed%%=*}="
    answer="$("${words[0]/#\~\//$HOME/}" __complete "${words[@]:1}" 2>/dev/null)" || return 0
    directive="${answer##*:}"
    while IFS= read -r line; do
        [[ $line == :* ]] && continue
        line="$flag${line%%$'\t'*}"
        [[ $line == "$typed"* ]] || continue
        line="${line#"$head"}"
        # Quote names such as those of contexts, so that the shell does not run a part of them.
        [[ $line == *[^[:alnum:]_.,:=/@%+-]* ]] && printf -v line %q "$line"
        COMPREPLY+=("$line")
    done <<<"$answer"
    if ((directive & 2)); then
        compopt -o nospace 2>/dev/null
    fi
    if [[ ${#COMPREPLY[@]} -eq 0 ]] && ! ((directive & 4)); then
        while IFS= read -r line; do
            line="$flag$line"
            COMPREPLY+=("${line#"$head"}")
        done < <(compgen -f -- "${typed#"$flag"}")
        compopt -o filenames 2>/dev/null
    fi
    return 0
}

complete -F __virtual_node_complete virtual-node
"""

_ZSH = r"""
#compdef virtual-node
# zsh completion for virtual-node. To use it: source <(virtual-node completion zsh)

_virtual-node() {
    local answer directive line
    local -a lines candidates
    answer="$("${words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)" || return 1
    lines=("${(@f)answer}")
    directive="${lines[-1]#:}"
    for line in "${(@)lines[1,-2]}"; do
        # _describe reads value:description
        if [[ "$line" == *$'\t'* ]]; then
            candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        else
            candidates+=("${line//:/\\:}")
        fi
    done
    # Of --flag=value only the value is completed.
    [[ "${words[CURRENT]}" == -*=* ]] && compset -P '*='
    if (( ${#candidates} && directive & 2 )); then
        _describe -V 'virtual-node' candidates -S ''
    elif (( ${#candidates} )); then
        _describe -V 'virtual-node' candidates
    elif (( ! (directive & 4) )); then
        _files
    fi
}

if [[ "${funcstack[1]}" == _virtual-node ]]; then
    _virtual-node "$@"
else
    compdef _virtual-node virtual-node
fi
"""

_FISH = r"""
# fish completion for virtual-node. To use it: virtual-node completion fish | source

function __virtual_node_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    set -l lines ($program __complete $words "$current" 2>/dev/null)
    or return
    set -l directive $lines[-1]
    set -e lines[-1]
    # fish replaces the whole --flag=value, so the flag is put before every value.
    set -l prefix (string match -r -- '^-[^=]*=' "$current")
    set -l value "$current"
    if test -n "$prefix"
        set value (string replace -r -- '^-[^=]*=' '' "$current")
    end
    if test (count $lines) -gt 0
        for line in $lines
            printf "%s\n" "$prefix$line"
        end
    else if test "$directive" = ":0"
        for path in (__fish_complete_path "$value")
            printf "%s\n" "$prefix$path"
        end
    end
end

complete -c virtual-node -e
complete -c virtual-node -f -a '(__virtual_node_complete)'
"""

SCRIPTS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""Scripts by name of the shell."""
