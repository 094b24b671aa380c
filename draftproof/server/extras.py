"""Fields that a body has and this server does not: taken where they change no answer, refused by name where they would.

Knows other servers' fields, and none of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from draftproof.server.bodies import Part, Sampling
from draftproof.server.errors import invalid

_LOG = logging.getLogger("draftproof.server")
# fields of other servers that change no answer: taken, and logged once
_HARMLESS = frozenset(
    {
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "priority",
        "parallel_tool_calls",
    }
)
# fields that are taken with these values alone, which ask for what is done anyway
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "store": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "early_stopping": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "include_stop_str_in_output": (False,),
    "detokenize": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),  # of a chat; completions have the field
    "echo": (False,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
}
_logged: set[str] = set()


def check_fields(body: Sampling) -> None:
    """Raises: Refusal."""
    check_extras(body, "")
    for name in ("speculative", "stream_options", "prediction"):
        check_extras(getattr(body, name), name)


def check_extras(part: Part, inside: str) -> None:
    """`inside` is the field that the part is the value of, empty for a whole body.

    Raises: Refusal.
    """
    for name, value in part.extras.items():
        full = f"{inside}.{name}" if inside else name
        if not inside and name in _HARMLESS:
            _log_once(name)
        elif inside or not _neutral(name, value):
            wanted = " or ".join(map(repr, _NEUTRAL[name])) if not inside and name in _NEUTRAL else ""
            fix = f"it can only be {wanted}" if wanted else "this server does not know it: leave it out"
            raise invalid(full, fix)


def _neutral(name: str, value: Any) -> bool:
    return any(value == known and type(value) is type(known) for known in _NEUTRAL.get(name, ()))


def _log_once(name: str) -> None:
    if name not in _logged:
        _logged.add(name)
        _LOG.warning("field %s is taken and has no effect here (said once)", name)
