"""The boundary to model files, which may be damaged or hostile: whatever reading them raises becomes one typed error.

The readers behind it (json, struct, safetensors, tokenizers, torch) raise dozens of types, two of them bare `Exception`
and PyO3's PanicException, which is no `Exception` at all; naming each would leave the next one out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import EngineError, WeightsMismatch

log = logging.getLogger(__name__)
_NOT_OURS = (EngineError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit)
_HINT = "fetch the model again; `esclusa doctor` reads each configured model file and names what is wrong"


@contextmanager
def model_files(name: str) -> Iterator[None]:
    """Raises WeightsMismatch for anything that reading the model `name` raises; engine errors pass as they are."""
    try:
        yield
    except _NOT_OURS:
        raise
    except OSError as error:
        raise WeightsMismatch(f"{name} cannot be read: {error.strerror or type(error).__name__}") from error
    except BaseException as error:
        log.debug("reading %s failed", name, exc_info=True)
        raise WeightsMismatch(f"{name} is damaged or inconsistent: {_reason(error)}", hint=_HINT) from error


def _reason(error: BaseException) -> str:
    """The type and a short printable message: it may quote the file."""
    text = "".join(character if character.isprintable() else " " for character in str(error))
    return f"{type(error).__name__}: {text[:160]}" if text.strip() else type(error).__name__
