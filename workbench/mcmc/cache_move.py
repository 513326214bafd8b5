"""What one decision did to its chain's row of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheMove"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMove:
    """Counted in positions of the chain's own row, the prompt's included; as the cache itself had them."""

    kept: int
    """Before the pivot: neither moved nor computed again."""
    taken: int
    """Of the old suffix, set aside when the proposal began."""
    fed: int
    """Computed for the proposal, over all of its tries."""
    restored: int
    """Of those set aside, put back bit for bit: all after a rejection, none after an acceptance."""
    after: int
    """In the row after the decision."""

    @property
    def before(self) -> int:
        """In the row when the proposal began."""
        return self.kept + self.taken

    @property
    def dropped(self) -> int:
        """Of those fed, forgotten with the decision."""
        return self.kept + self.restored + self.fed - self.after
