"""What mods of the public SDK take for ``max.driver.Tensor``: logits that turn into NumPy when they ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["LogitsArray", "Tensor", "top_logprobs"]


class LogitsArray(np.ndarray[Any, Any]):
    """A ``(1, vocab)`` array in which a lone index means the vocabulary.

    Mods for the public SDK write ``x[token]``, ``x[[tokens]]`` and ``x[0, token]``, all of the same array. So an
    index that is no tuple goes to the vocabulary axis, ``x[0]`` too: it is the logit of token 0. The row is
    ``x[0, :]``. Arrays of another shape, which arithmetic may give, are indexed as NumPy does.
    """

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._place(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(self._place(key), value)

    def _place(self, key: Any) -> Any:
        if self.ndim != 2 or self.shape[0] != 1 or isinstance(key, tuple) or key is None or key is Ellipsis:
            return key
        if isinstance(key, np.ndarray) and key.ndim == 2 and key.dtype == np.bool_:
            return key
        return (0, key)


class Tensor:
    """A tensor in the form that the SDK's mods expect. Nothing is copied until ``to_numpy`` is called.

    ``Tensor.from_numpy(array)`` keeps the array as it is. Dividing gives a new tensor. Moving to another device
    does nothing: here all of it is memory of the CPU, and a mod that goes to a device and back gets what it had.
    """

    __slots__ = ("_array", "_before", "_source")

    def __init__(self, data: Any) -> None:
        self._source = data if isinstance(data, torch.Tensor) else None
        self._array: np.ndarray[Any, Any] | None = None if self._source is not None else np.asanyarray(data)
        self._before: np.ndarray[Any, Any] | None = None

    @classmethod
    def from_numpy(cls, array: Any) -> Tensor:
        """A tensor over ``array``, which is not copied."""
        return cls(np.asanyarray(array))

    @classmethod
    def of_logits(cls, logits: torch.Tensor) -> Tensor:
        """The logits of one pass, ``[vocab]``, as ``(1, vocab)``."""
        return cls(logits[None])

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """The values; writing into them changes this tensor. A row of logits comes as ``LogitsArray``."""
        if self._array is None:
            assert self._source is not None
            array = self._source.detach().cpu().numpy()
            self._before = array.copy()
            self._array = array.view(LogitsArray) if array.ndim == 2 and array.shape[0] == 1 else array
        return self._array

    def written_into(self) -> bool:
        """Whether somebody wrote into what ``to_numpy`` gave."""
        return self._before is not None and not np.array_equal(self._before, np.asarray(self._array), equal_nan=True)

    def to(self, device: Any = None, *_: Any, **__: Any) -> Tensor:
        """The same tensor: there is only the CPU here."""
        return self

    def copy(self) -> Tensor:
        """A tensor of its own values."""
        return Tensor(self._source.clone() if self._array is None and self._source is not None else self._own().copy())

    def item(self) -> float | int:
        """The one value of a tensor that holds one.

        :raises ValueError: it holds more.
        """
        value: float | int = np.asarray(self._own()).item()
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._own().shape if self._source is None else self._source.shape)

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def dtype(self) -> Any:
        return self._own().dtype

    def __truediv__(self, other: Any) -> Tensor:
        return Tensor(self._own() / (other.to_numpy() if isinstance(other, Tensor) else other))

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self._own()[key])

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._own(), dtype=dtype, copy=copy, subok=False)

    def _own(self) -> np.ndarray[Any, Any]:
        return self.to_numpy()

    def __repr__(self) -> str:
        return f"<Tensor of shape {self.shape}>"


def top_logprobs(logits: Any, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Log-probabilities and ids of the ``k`` likeliest tokens of one row of logits, best first, both ``(1, k)``."""
    given = logits if isinstance(logits, np.ndarray) else logits.to_numpy()
    row = np.asarray(given, dtype=np.float64).reshape(-1)
    best = np.argsort(-row, kind="stable")[:k]
    highest = row.max()
    logprobs = row - highest - np.log(np.exp(row - highest).sum())
    return logprobs[best][None], best[None]


def vocabulary_row(logits: Any) -> torch.Tensor | np.ndarray[Any, Any] | Sequence[float]:
    """What a mod gave for logits, as something the engine checks and takes: a look-alike's array, else as it is."""
    return np.asarray(logits.to_numpy()) if isinstance(logits, Tensor) else logits
