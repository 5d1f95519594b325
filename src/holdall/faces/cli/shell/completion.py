"""The command `completion`: prints a script that completes commands and options in bash, zsh or fish."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ....errors import InvalidInput
from ..options import DONE, AsJson
from .terminal import Stdout, print_json

_BASH = r"""# holdall: completion for bash. Add this line to ~/.bashrc:  source <(holdall completion bash)
_holdall() {
    local cur=${COMP_WORDS[COMP_CWORD]} command= found= word
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "$command $word" in
@GROUPS@
        esac
    done
    case "$command" in
@OPTIONS@
        *) found="@COMMANDS@" ;;
    esac
    if [[ $cur == -* || -z $command || " @NAMES@ " == *" $command "* ]]; then
        COMPREPLY=($(compgen -W "$found" -- "$cur"))
    fi
    if [[ ${#COMPREPLY[@]} -eq 0 || $COMP_CWORD -eq 1 ]]; then
        COMPREPLY+=($(compgen -f -- "$cur"))
    fi
}
complete -o filenames -F _holdall holdall
"""
_ZSH = (
    "# holdall: completion for zsh. Add this line to ~/.zshrc:  source <(holdall completion zsh)\n"
    "autoload -U +X bashcompinit && bashcompinit\n"
)


def make_completion(commands: Any) -> Any:
    """Return the command for a tree of commands, which is made when the command runs."""

    def completion(
        shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")], as_json: AsJson = False
    ) -> int:
        """Print a script that completes commands and options in bash, zsh or fish."""
        tree = dict(_walk(commands()))
        if shell not in ("bash", "zsh", "fish"):
            raise InvalidInput(f"completion is for bash, zsh or fish, not {shell!r}")
        script = _write_fish(tree) if shell == "fish" else _write_bash(tree, shell)
        print_json({"shell": shell, "script": script}) if as_json else Stdout().write(script.encode())
        return DONE

    return completion


def _walk(group: Any, above: str = "") -> Iterator[tuple[str, tuple[str, list[str], bool]]]:
    """Yield each command: its name, such as "item get", its help, its options, and whether it has subcommands."""
    for name, command in group.commands.items():
        full = f"{above}{name}"
        is_group = hasattr(command, "commands")
        options = [word for parameter in command.params for word in parameter.opts if word.startswith("-")]
        yield full, ((command.help or "").split("\n")[0], [*options, "--help"], is_group)
        if is_group:
            yield from _walk(command, f"{full} ")


def _write_bash(tree: dict[str, tuple[str, list[str], bool]], shell: str) -> str:
    names = [name for name in tree if " " not in name]
    groups = [name for name, (_, _, is_group) in tree.items() if is_group]
    cases = [f'            " {name}") command={name} ;;' for name in names]
    cases += [f"            {name!r}) command={name!r} ;;".replace("'", '"') for name in tree if " " in name]
    options = [
        f'        "{name}") found="{" ".join(words)}" ;;' for name, (_, words, _) in tree.items() if name not in groups
    ]
    for group in groups:
        inner = [name.split(" ")[1] for name in tree if name.startswith(f"{group} ")]
        options.append(f'        "{group}") found="{" ".join(inner)} --help" ;;')
    script = _BASH.replace("@GROUPS@", "\n".join(cases)).replace("@OPTIONS@", "\n".join(options))
    script = script.replace("@COMMANDS@", " ".join([*names, "--help", "--version"])).replace(
        "@NAMES@", " ".join(groups)
    )
    return _ZSH + script.partition("\n")[2] if shell == "zsh" else script


def _write_fish(tree: dict[str, tuple[str, list[str], bool]]) -> str:
    names = [name for name in tree if " " not in name]
    lines = ["# holdall: completion for fish. Run:  holdall completion fish > ~/.config/fish/completions/holdall.fish"]
    seen = f"__fish_seen_subcommand_from {' '.join(names)}"
    for name, (help, options, is_group) in tree.items():
        *above, own = name.split(" ")
        if above:
            inner = " ".join(other.split(" ")[1] for other in tree if other.startswith(f"{above[0]} "))
            where = f"__fish_seen_subcommand_from {above[0]}; and not __fish_seen_subcommand_from {inner}"
            here = f"__fish_seen_subcommand_from {above[0]}; and __fish_seen_subcommand_from {own}"
        else:
            where, here = f"not {seen}", f"__fish_seen_subcommand_from {own}"
        lines.append(f"complete -c holdall -n '{where}' -a {own} -d {_quote(help)}")
        for option in () if is_group else options:
            form = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"complete -c holdall -n '{here}' {form}")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
