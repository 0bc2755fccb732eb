"""`Cooldown`: a circuit breaker that refuses requests to a model while its upstream keeps failing.

Without it, every request to a provider that is down would occupy a place until it fails, and add to the load
under which the provider must recover.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from langchain_cfc.errors import DrawError, ServingTimeoutError, VerifierError
from langchain_cfc_server.errors import RefusedError, list_causes

_LOG = logging.getLogger("langchain_cfc_server")
_FAILURES = (DrawError, VerifierError, ServingTimeoutError)
# Statuses with which a provider rejects a prompt, for example because it is too long.
_PROMPT_STATUSES = frozenset({400, 413, 422})


class Cooldown:
    """Refuses requests to a model for some time after several consecutive failures.

    Afterwards, one request at a time is let through as a probe: an answer ends the cooldown, and a failure
    starts the next one. Failures are errors of the model or its verifier, and requests that exceed their time
    limit. A prompt that the provider rejects is not a failure; otherwise one client could block all others.

    Attributes:
        times: Number of cooldowns so far.

    Args:
        model: The model's name, for logs.
        after: Number of consecutive failures after which a cooldown starts; 0 for never.
        seconds: Duration of a cooldown, in seconds.
    """

    def __init__(self, model: str, after: int, seconds: float) -> None:
        self.times = 0
        self._model = model
        self._after = after
        self._seconds = seconds
        self._failures = 0
        self._ends: float | None = None
        self._is_probed = False

    @property
    def is_active(self) -> bool:
        """Whether a cooldown has started and no request has been answered since."""
        return self._ends is not None

    @contextmanager
    def watch(self, is_overdue: Callable[[], bool]) -> Iterator[None]:
        """Record the outcome of the request inside the block, or refuse the request.

        Args:
            is_overdue: Called when the request is cancelled; returns whether its time limit had passed.

        Raises:
            RefusedError: If the model is cooling down.
        """
        is_probe = self._admit()
        try:
            yield
        except asyncio.CancelledError:
            if is_overdue():
                self._record_failure(is_probe=is_probe)
            raise
        except _FAILURES as error:
            if not any(getattr(one, "status_code", None) in _PROMPT_STATUSES for one in list_causes(error)):
                self._record_failure(is_probe=is_probe)
            raise
        else:
            self._record_answer()
        finally:
            if is_probe:
                self._is_probed = False

    def _admit(self) -> bool:
        """Return whether an admitted request is a probe; raise a `RefusedError` during a cooldown."""
        if self._ends is None:
            return False
        left = self._ends - time.monotonic()
        if left > 0 or self._is_probed:
            msg = "the model behind this server failed several times in a row and is cooling down"
            again = {"Retry-After": str(max(1, math.ceil(left)))}
            raise RefusedError(503, "upstream_cooling_down", msg, headers=again)
        self._is_probed = True
        return True

    def _record_failure(self, *, is_probe: bool) -> None:
        self._failures += 1
        if is_probe or (self._ends is None and 0 < self._after <= self._failures):
            self._ends = time.monotonic() + self._seconds
            self.times += 1
            fields = {"model": self._model, "failures": self._failures, "seconds": self._seconds}
            _LOG.warning("cooldown of a failing upstream", extra={"fields": fields})

    def _record_answer(self) -> None:
        if self._ends is not None:
            _LOG.info("upstream answers again", extra={"fields": {"model": self._model}})
        self._failures = 0
        self._ends = None
