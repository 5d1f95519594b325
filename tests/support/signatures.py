"""Signatures of functions, as the code defines them and as the documentation shows them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any


def signature_of(function: Callable[..., Any]) -> list[str]:
    """Parameters as they would be written, and the result; for a program, its own result."""
    signature = inspect.signature(function)
    written = []
    for parameter in signature.parameters.values():
        if parameter.name == "self" or parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            written.append(f"*{parameter.name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in written:
            written.append("*")
        default = parameter.default
        is_free = default is parameter.empty
        shown = repr(default).removeprefix("holdall.").replace("NOT_GIVEN", "NOT_PROVIDED")  # as LangGraph calls it
        written.append(parameter.name if is_free else f"{parameter.name}={shown}")
    result = str(signature.return_annotation).replace("_Names", "list[str]")
    program = re.fullmatch(r"(?:Store)?Program\[(.*)\]", result)
    return [*written, program[1] if program else result]


def documented_signature(text: str) -> list[str]:
    """The same of a signature that is written in the reference."""
    [function] = ast.parse(f"def f{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    assert function.returns is not None
    arguments = function.args
    plain = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
    written = [_written(argument, default) for argument, default in zip(arguments.args, plain, strict=True)]
    if arguments.vararg is not None:
        written.append(f"*{arguments.vararg.arg}")
    if arguments.kwonlyargs:
        written.append("*")
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        written += [_written(argument, default) for argument, default in pairs]
    return [*written, ast.unparse(function.returns)]


def _written(argument: ast.arg, default: ast.expr | None) -> str:
    return argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}"
