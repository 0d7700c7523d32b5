"""Refusals: whether a request is sent again with other credentials than were not accepted.

A token may be good for so many requests, or for so long. Many requests that are under way with it
are refused then, and some of them again with the next one, which the others have used up.
"""

from __future__ import annotations

from itertools import count

from virtualzarr.config import config

_IN_VAIN = 10
"""After how many refusals a request is given up while no other one is accepted, either."""

_LEAST = 20
"""How often a request is sent again at least, while others are accepted."""


class Uses:
    """Requests that were sent with one credential, or with any of one provider.

    Parameters
    ----------
    of_all : Uses, optional
        Those with any credential of the same provider.

    Attributes
    ----------
    accepted : int
        How many were accepted.
    last_accepted : int
        The number of the last one of these; -1 for none.
    next_number : int
        That of the request that is sent next.

    Examples
    --------
    >>> uses = Uses()
    >>> number = uses.begin()
    >>> uses.end(number, is_accepted=True)
    >>> uses.accepted
    1
    """

    def __init__(self, of_all: Uses | None = None) -> None:
        self.of_all = self if of_all is None else of_all
        self.accepted, self.last_accepted = 0, -1
        self.next_number = 0
        self._numbers = count()
        self._under_way: set[int] = set()

    def begin(self) -> int:
        """Note that a request is sent, and return its number."""
        number = next(self._numbers)  # of threads at once, each gets another one
        self.next_number = max(self.next_number, number + 1)
        self._under_way.add(number)
        return number

    def end(self, number: int, *, is_accepted: bool) -> None:
        """Note that a request was answered."""
        self._under_way.discard(number)
        if is_accepted:
            self.accepted += 1
            self.last_accepted = max(self.last_accepted, number)
            if self.of_all is not self:
                self.of_all.accepted += 1

    @property
    def are_in_vain(self) -> bool:
        """Whether no request was accepted, nor is one under way that may be."""
        return not self.accepted and not self._under_way


class Refusals:
    """How often one request was refused by the credentials of one provider.

    Attributes
    ----------
    count : int
    """

    def __init__(self) -> None:
        self.count = self._in_vain = self._accepted = 0
        self._before: tuple[Uses, int] | None = None

    def note(self, uses: Uses) -> bool:
        """Note a refusal, and tell whether the request may be sent again with other credentials.

        A provider may give new ones for ever that are never accepted, or not for this request.

        Parameters
        ----------
        uses : Uses
            Of the credential that was refused.
        """
        self.count += 1
        is_certain = self.count > 1 and (uses.are_in_vain or self._is_refused_alone())
        self._before = uses, uses.next_number
        # What comes of requests that are under way is known later than that one is refused.
        is_progress = uses.of_all.accepted > self._accepted
        self._in_vain = 0 if is_progress else self._in_vain + 1
        self._accepted = uses.of_all.accepted
        # In turn, each of those under way uses one up in the worst case.
        is_enough = self._in_vain >= _IN_VAIN or self.count > max(config.requests, _LEAST)
        return not (is_certain or is_enough)

    def _is_refused_alone(self) -> bool:
        """Whether the credential before was accepted for what was sent after it was refused."""
        return self._before is not None and self._before[0].last_accepted >= self._before[1]
