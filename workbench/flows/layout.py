"""Where the questions of a flow stand in a drawing: a layered tree, the same for the same flow every time."""

from __future__ import annotations

from collections.abc import Mapping

from .document import questions_of
from .question import FlowDefinition, FlowQuestion, question_of

__all__ = ["layout", "outline"]


def outline(flow: FlowDefinition | FlowQuestion) -> dict[str, str | None]:
    """Every question, depth first, with the one that it hangs below: the fewest answers from the root lead there.

    A flow may lead back or lead to one question from several; in the outline each stands once. Questions that nothing
    written leads to come last, with None as the root has.
    """
    questions = questions_of(flow)
    parents: dict[str, str | None] = {}
    below: dict[str, list[str]] = {}
    for start in questions:
        waiting = [start] if start.name not in parents else []
        parents.setdefault(start.name, None)
        for question in waiting:  # grows while it is walked: breadth first
            children = below.setdefault(question.name, [])
            for _, target in question.targets():
                following = question_of(target)
                if following is not None and following.name not in parents:
                    parents[following.name] = question.name
                    children.append(following.name)
                    waiting.append(following)
    return {name: parents[name] for name in _depth_first(parents, below)}


def _depth_first(parents: Mapping[str, str | None], below: Mapping[str, list[str]]) -> list[str]:
    found: list[str] = []
    waiting = [name for name, parent in parents.items() if parent is None][::-1]
    while waiting:
        name = waiting.pop()
        found.append(name)
        waiting.extend(reversed(below[name]))
    return found


def layout(
    flow: FlowDefinition | FlowQuestion,
    heights: Mapping[str, float] | None = None,
    *,
    across: float = 1.0,
    gap: float = 0.0,
) -> dict[str, tuple[float, float]]:
    """The left upper corner (x, y) of each question's box, by name, in the order of :func:`outline`.

    x is the depth times ``across``. y puts boxes of the given ``heights`` (1 each by default) below one another with
    ``gap`` between, each in the middle of what hangs below it: with the defaults, the leaf's index. Boxes of one depth
    never overlap.
    """
    parents = outline(flow)
    tall = {name: (1.0 if heights is None else heights[name]) for name in parents}
    depths: dict[str, int] = {}
    below: dict[str, list[str]] = {name: [] for name in parents}
    for name, parent in parents.items():
        depths[name] = 0 if parent is None else depths[parent] + 1
        if parent is not None:
            below[parent].append(name)
    needs: dict[str, float] = {}
    for name in reversed(parents):  # what hangs below comes first
        needs[name] = max(tall[name], sum(needs[each] + gap for each in below[name]) - gap)
    tops: dict[str, float] = {}
    end = 0.0
    for name, parent in parents.items():
        if parent is None:
            tops[name], end = end, end + needs[name] + gap
        top = tops[name] + (needs[name] - sum(needs[each] + gap for each in below[name]) + gap) / 2
        for each in below[name]:
            tops[each], top = top, top + needs[each] + gap
    return {name: (depths[name] * across, tops[name] + (needs[name] - tall[name]) / 2) for name in parents}
