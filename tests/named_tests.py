"""Tests that a page of the documentation names."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

__all__ = ["ROOT", "defined"]

ROOT = Path(__file__).resolve().parents[1]


@lru_cache
def defined(path: str) -> frozenset[str]:
    """Functions of a test file, those of classes as ``Class::name``."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    top = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    inner = {
        f"{each.name}::{node.name}"
        for each in tree.body
        if isinstance(each, ast.ClassDef)
        for node in each.body
        if isinstance(node, ast.FunctionDef)
    }
    return frozenset(top | inner)
