"""A small text collection that is searched by BM25 (Robertson and Zaragoza 2009; the library bm25s ranks)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import bm25s
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

from ..bundled import bundled

__all__ = ["Collection", "Found", "Passage"]

TITLE_WEIGHT = 3
"""How often a passage's title counts beside its text: a title says what all of it is about."""
_ASKING = [
    "tell", "know", "please", "explain", "say", "give", "me", "you", "i", "can", "do", "does", "did", "is", "about",
    "what", "who", "whom", "whose", "which", "when", "where", "why", "how", "much", "many",
]  # fmt: skip
"""Words that a question is asked with, beside English function words: they say nothing of what it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One text of a collection, with its title."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A passage with its BM25 score (above 0; larger is nearer)."""

    passage: Passage
    score: float


class Collection:
    """Passages and their index. English: words are stemmed, function words are left out.

    :raises ValueError: there are no passages, or nothing in them can be searched for.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        if not passages:
            raise ValueError("a collection needs at least one passage")
        self.passages = tuple(passages)
        self._stemmer = Stemmer.Stemmer("english")
        self._index = bm25s.BM25()
        texts = [" ".join([*[passage.title] * TITLE_WEIGHT, passage.text]) for passage in passages]
        words = self._words(texts)
        if not any(words):
            raise ValueError("no passage has a word to search by: all are function words")
        self._index.index(words, show_progress=False)

    @classmethod
    def load(cls, path: str | Path | None = None) -> Collection:
        """The collection of a JSON file ``{"passages": [{"title": …, "text": …}, …]}``; by default the bundled one.

        :raises ValueError: the file is no such document.
        """
        path = bundled("collection/passages.json") if path is None else Path(path)
        try:
            told = json.loads(path.read_text("utf-8"))["passages"]
            passages = [Passage(title=str(each["title"]), text=str(each["text"])) for each in told]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f'{path}: a collection is JSON of the form {{"passages": [{{"title": …, "text": …}}, …]}}: {error!r}'
            ) from None
        return cls(passages)

    def search(self, query: str, most: int = 3) -> list[Found]:
        """The nearest passages, best first; fewer or none where no word of the query occurs."""
        words = self._words([query])
        if not words or not words[0] or most < 1:
            return []
        results = self._index.retrieve(words, k=min(most, len(self.passages)), show_progress=False)
        pairs = zip(results.documents[0].tolist(), results.scores[0].tolist(), strict=True)
        return [Found(passage=self.passages[index], score=score) for index, score in pairs if score > 0]

    def _words(self, texts: list[str]) -> list[list[str]]:
        words: list[list[str]] = bm25s.tokenize(
            texts, stopwords=[*STOPWORDS_EN, *_ASKING], stemmer=self._stemmer, return_ids=False, show_progress=False
        )
        return words
