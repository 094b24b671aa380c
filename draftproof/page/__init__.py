"""What every HTML page of the package shares: its frame, its style, and how a template becomes one string.

A page is self-contained: nothing is fetched and nothing runs. Whatever comes from results is escaped by the template.
Knows no report and no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render(template: Path, context: Mapping[str, Any]) -> str:
    """The page of `template`, which extends frame.html.j2 and takes macros from parts.html.j2.

    Raises:
        jinja2.UndefinedError: the template names what `context` does not have.
    """
    loader = FileSystemLoader([template.parent, Path(__file__).parent])
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = pages.get_template(template.name).render(context)
    return source.encode("utf-8", "replace").decode()
