"""``virtual-node completion bash|zsh|fish``: prints a script that completes commands, flags and values.

The scripts run ``virtual-node __complete WORDS``, as kubectl's do, so they stay current after an update. The
output has cobra's format: a candidate per line, a tab, its description, and on the last line a directive,
which is a sum of bits. Bit 4 means no file names, and bit 2 means no space after the word. kubectl runs
``kubectl_complete-virtual_node`` with the same protocol.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from controller_runtime.apimachinery import readable
from controller_runtime.process import terminal
from controller_runtime.process.argparser import Parser
from virtual_node.commands.completion import engine
from virtual_node.config import program

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


def answer(words: Sequence[str], *, commands: Mapping[str, str], parser_of: engine.ParserOf) -> int:
    """Print the candidates for the last word; return 0.

    Args:
        words: words after the program's name; the last one is being typed and may be empty.
        commands: every command with its purpose.
        parser_of: returns the parser of a command; None: it takes no flags.
    """
    found = engine.complete(
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
