"""Exchangeability martingales: M1 and M2 of SITE.md S7."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from calcode.errors import SettingsError
from calcode.monitor.protocol import Reading, State, checked_alpha, reaches
from calcode.monitor.ranks import GrowingRanks

#: Share of every account that is distributed over all three at each step.
_JUMP = 0.01
#: Largest bet of an account: below 1, so that no account ever loses everything.
_STAKE = 0.999
#: Beyond these bounds accounts are rescaled by an exact power of two, so that long streams cause neither overflow
#: nor underflow.
_LARGEST_EXPONENT = 500


class ExchangeabilityMartingale:
    """Bets that new values are not distributed like the reference (SITE.md S7, M1 and M2).

    **Null hypothesis.** The reference and all values so far are exchangeable: any order of them is equally likely.
    Values of independent cases from the distribution of the reference satisfy it.

    **Theorem.** With v_1, v_2, ... ranked among the reference and all earlier values,
    p_t = (#{v > v_t} + U_t (1 + #{v = v_t})) / (size + 1), the p_t are independent and uniform under the null
    (Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World). The simple jumper keeps three accounts
    e in {-1, 0, 1} that start at 1/3; each step takes C_e <- 0.99 C_e + 0.01 (sum C) / 3 and then
    C_e <- C_e (1 + 0.999 e (2 p_t - 1)). A factor has mean 1 for a uniform p, so the capital, the sum of C, is a
    nonnegative martingale from 1, and by Ville's inequality P(it ever reaches 1 / alpha) <= alpha: an alarm at the
    first such time is right at every look.

    **Limits.** It tests exchangeability, not harm. A change that does not matter to decisions raises an alarm, and a
    change that leaves the distribution of the value unchanged raises none. The reference grows with the stream, so a
    slow change is absorbed. Without a change the capital falls by 0.7 % a step, which delays a later alarm. Several
    values of one patient are not exchangeable with single ones: only one value per group, ever. Ranks among a fixed
    reference alone are not independent, and the theorem does not hold for them.

    Parameters
    ----------
    reference : iterable of float
        Values of the gate (M1) or of the bag's rows of a class (M2), one per group.
    alpha : float
        Bound on the probability that a false alarm is ever raised.
    seed : int or sequence of int
        Seeds the U_t.
    n_first : int
        Number of first values that join the reference without a bet: 20 if the site has no reference.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> martingale = ExchangeabilityMartingale(rng.normal(size=500), alpha=0.01, seed=0)
    >>> calm = [martingale.update(value) for value in rng.normal(size=200)]
    >>> calm[-1].alarm_at is None
    True
    >>> shifted = [martingale.update(value) for value in rng.normal(loc=2.0, size=50)]
    >>> shifted[-1].alarm_at
    220
    """

    def __init__(
        self, reference: Iterable[float], *, alpha: float, seed: int | list[int] = 0, n_first: int = 0
    ) -> None:
        if n_first < 0:
            raise SettingsError(f"n_first: {n_first} must be 0 or more")
        self.alpha = checked_alpha(alpha)
        self._ranks = GrowingRanks(reference)
        self._n_first = n_first
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._accounts = (1 / 3, 1 / 3, 1 / 3)
        self._exponent = 0
        self._n = 0
        self._alarm_at: int | None = None

    @property
    def reading(self) -> Reading:
        """The current capital."""
        log_capital = math.log(sum(self._accounts)) + self._exponent * math.log(2.0)
        return Reading(self._n, log_capital, self._alarm_at)

    def update(self, value: float) -> Reading:
        """Rank one more value, bet on its rank, and add it to the reference for later ranks."""
        greater, equal = self._ranks.insert(value)
        self._n += 1
        if self._n > self._n_first:
            p = (greater + self._generator.random() * (1 + equal)) / len(self._ranks)
            self._bet(_STAKE * (2.0 * p - 1.0))
        reading = self.reading
        if self._alarm_at is None and reaches(reading.log_capital, alpha=self.alpha):
            self._alarm_at = self._n
            reading = self.reading
        return reading

    def _bet(self, gain: float) -> None:
        down, still, up = self._accounts
        shared = _JUMP * (down + still + up) / 3.0
        down = ((1.0 - _JUMP) * down + shared) * (1.0 - gain)
        still = (1.0 - _JUMP) * still + shared
        up = ((1.0 - _JUMP) * up + shared) * (1.0 + gain)
        _, exponent = math.frexp(down + still + up)
        if abs(exponent) > _LARGEST_EXPONENT:
            down, still, up = (math.ldexp(account, -exponent) for account in (down, still, up))
            self._exponent += exponent
        self._accounts = down, still, up

    def to_state(self) -> dict[str, Any]:
        """Everything that the next update depends on, as JSON values."""
        bits: Any = self._generator.bit_generator.state
        return {
            "alpha": self.alpha,
            "values": list(self._ranks),
            "n_first": self._n_first,
            "n": self._n,
            "accounts": list(self._accounts),
            "exponent": self._exponent,
            "alarm_at": self._alarm_at,
            # As text: many JSON readers do not keep 128-bit integers.
            "generator": {name: str(bits["state"][name]) for name in ("state", "inc")},
        }

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Restore a saved martingale; raise `ArtifactError` if its state is invalid."""
        entry = State(state, name="martingale")
        n = entry.integer("n")
        values = entry.numbers("values", at_least=n)
        martingale = cls(values, alpha=entry.share("alpha"), n_first=entry.integer("n_first"))
        accounts = entry.numbers("accounts", at_least=3, low=0.0)
        exponent = entry.integer("exponent", low=-(2**40))
        entry.require(
            len(accounts) == 3 and sum(accounts) > 0.0 and math.frexp(sum(accounts))[1] <= _LARGEST_EXPONENT + 1,
            "accounts",
        )
        martingale._n = n
        martingale._accounts = accounts[0], accounts[1], accounts[2]
        martingale._exponent = exponent
        martingale._alarm_at = entry.position("alarm_at", n=n)
        generator = State(entry["generator"], name="martingale generator")
        state_, inc = (generator.digits(name, below=2**128) for name in ("state", "inc"))
        martingale._generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": state_, "inc": inc},
            "has_uint32": 0,
            "uinteger": 0,
        }
        return martingale
