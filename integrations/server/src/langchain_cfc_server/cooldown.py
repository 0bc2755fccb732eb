"""`Cooldown`: a circuit breaker that refuses requests to an upstream while it keeps failing.

Without it, every request to a provider that is down would occupy a place until it fails, and add to the load
under which the provider must recover.

A prompt can make a model fail too: by its length, its topic, or an answer that a verifier cannot read. Were
such failures counted, one client could have the model refused to all others. So only what the upstream says
about itself counts: a refused key or account, a rate limit, a server error, no connection. Time-outs do not,
because a long answer exceeds them as well. As no status proves that a prompt is not the cause, each client
has a count of its own.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from langchain_cfc.errors import DrawError, VerifierError
from langchain_cfc.execution import classify_failure
from langchain_cfc_server.errors import RefusedError

_LOG = logging.getLogger("langchain_cfc_server")
# "access" is none of them: some providers answer so if a prompt is moderated or of an unsupported kind.
_UPSTREAM_FAILURES = frozenset({"key", "rate", "server", "not_connected", "connection_lost"})


@dataclass
class _Streak:
    """The failures that one client has met since the upstream last answered."""

    failures: int = 0
    ends: float | None = None
    is_probed: bool = False


class Cooldown:
    """Refuses a client's requests to an upstream for some time after several consecutive failures.

    Afterwards, one request of the client at a time is let through as a probe: a failure starts its next
    cooldown. An answer to any client ends all cooldowns.

    Attributes:
        times: Number of cooldowns so far.

    Args:
        model: The name of a model with this upstream, for logs.
        after: Number of consecutive failures after which a cooldown starts; 0 for never.
        seconds: Duration of a cooldown, in seconds.
    """

    def __init__(self, model: str, after: int, seconds: float) -> None:
        self.times = 0
        self._model = model
        self._after = after
        self._seconds = seconds
        self._streaks: dict[str | None, _Streak] = {}

    @property
    def is_active(self) -> bool:
        """Whether a cooldown has started and no request has been answered since."""
        return any(streak.ends is not None for streak in self._streaks.values())

    @contextmanager
    def watch(self, client: str | None) -> Iterator[None]:
        """Record the outcome of the request inside the block, or refuse the request.

        Args:
            client: Name of the client that makes the request.

        Raises:
            RefusedError: If the upstream is cooling down for this client.
        """
        streak = self._streaks.setdefault(client, _Streak())
        is_probe = _admit(streak)
        try:
            yield
        except (DrawError, VerifierError) as error:
            if classify_failure(error) in _UPSTREAM_FAILURES:
                self._record_failure(client, streak, is_probe=is_probe)
            raise
        else:
            if self.is_active:
                _LOG.info("upstream answers again", extra={"fields": {"model": self._model}})
            self._streaks.clear()
        finally:
            if is_probe:
                streak.is_probed = False

    def _record_failure(self, client: str | None, streak: _Streak, *, is_probe: bool) -> None:
        streak.failures += 1
        if is_probe or (streak.ends is None and 0 < self._after <= streak.failures):
            streak.ends = time.monotonic() + self._seconds
            self.times += 1
            fields = {"model": self._model, "failures": streak.failures, "seconds": self._seconds}
            if client is not None:
                fields["client"] = client
            _LOG.warning("cooldown of a failing upstream", extra={"fields": fields})


def _admit(streak: _Streak) -> bool:
    """Return whether an admitted request is a probe; raise a `RefusedError` during a cooldown."""
    if streak.ends is None:
        return False
    left = streak.ends - time.monotonic()
    if left > 0 or streak.is_probed:
        msg = "the model behind this server failed several times in a row and is cooling down"
        again = {"Retry-After": str(max(1, math.ceil(left)))}
        raise RefusedError(503, "upstream_cooling_down", msg, headers=again)
    streak.is_probed = True
    return True
