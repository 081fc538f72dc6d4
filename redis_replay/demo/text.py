"""Text as tokens: one per printable ASCII character. An answer is one word: a space ends it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from redis_replay.demo.tasks import MAX_WORD_LETTERS

TokenArray = NDArray[np.int32]

WINDOW_TOKENS: Final = 64
"""How much of the end of a question the network sees: all of it, for the task of the demo."""

MAX_ANSWER_TOKENS: Final = MAX_WORD_LETTERS + 2

_FIRST_CHARACTER: Final = " "
_LAST_CHARACTER: Final = "~"
_OFFSET: Final = ord(_FIRST_CHARACTER) - 1
VOCABULARY_SIZE: Final = ord(_LAST_CHARACTER) - _OFFSET + 1
"""Every printable ASCII character, and token 0 for the empty place and any other character."""

EMPTY_TOKEN: Final = 0
STOP_TOKEN: Final = ord(" ") - _OFFSET


def encode_text(text: str) -> TokenArray:
    """Turn text into tokens ``int32[len(text)]``, one per character."""
    codes = [ord(c) - _OFFSET if _FIRST_CHARACTER <= c <= _LAST_CHARACTER else 0 for c in text]
    return np.array(codes, dtype=np.int32)


def decode_answer(tokens: TokenArray) -> str:
    """Return the text up to the stop token."""
    characters: list[str] = []
    for token in tokens.tolist():
        if token == STOP_TOKEN:
            break
        characters.append("\ufffd" if token == EMPTY_TOKEN else chr(token + _OFFSET))
    return "".join(characters)


def prompt_window(prompt_ids: TokenArray) -> TokenArray:
    """Return what the network sees of a prompt: its end, padded on the left, ``int32[64]``."""
    window = np.zeros(WINDOW_TOKENS, dtype=np.int32)
    visible = prompt_ids[-WINDOW_TOKENS:]
    window[WINDOW_TOKENS - len(visible) :] = visible
    return window
