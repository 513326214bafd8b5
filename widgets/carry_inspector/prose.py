"""Sentences of the window that say how its views are to be read. They travel as data: the script is near its bound."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PROSE"]

PROSE: Mapping[str, str] = {
    "lengths": "s leaves the band, e enters it, x = merge(e, carried s) is what the band is given.",
    "shares": (
        "Carry share: the part of x that the carried state brought, ‖merge(e, s) − merge(e, 0)‖ / ‖e‖. Loops "
        "of the prompt have none to tell."
    ),
    "cosines": (
        "To the state before, to s_0 (the prompt's last token) and to what entered the band. Near 0: each "
        "step holds something else."
    ),
    "chain": (
        "One column per state. By a lens: what the state itself reads as. Answer now: what the model's later "
        "layers would make of it."
    ),
    "picked": (
        "No concepts were given: these are the tokens that the steps themselves read as, so a diagonal is no "
        "finding. CarryInspector(…, concepts=[…]) names the expected ones."
    ),
    "decodable": (
        "These views show what can be decoded from a state. Whether the model needs it is another question: see "
    ),
    "needed": (
        "Only an intervention shows whether a state is needed: the same weights with the state changed on its"
        " way. What can be read from it does not."
    ),
    "unmeasured": (
        "Nothing measured yet. Each state is changed in turn; every later answer is compared with that of the"
        " unchanged run."
    ),
    "controls": (
        "The depth loop with as many loops as pauses is the control that can tell a carry from plain "
        "recurrence; feed-forward alone can't. All rows use one set of weights: controls that were trained "
        "for themselves stand in the table of trained controls."
    ),
    "gradients": (
        "Mean over rows of the norm, on a logarithmic axis. Where it fades towards early steps, training "
        "through fewer steps would lose little; where it grows, steps amplify."
    ),
    "trained": (
        "Below the line: the carry's own weights with their states changed at test time. Intervals (Wilson 95"
        " % of all problems) and the range over seeds are in the table. A frozen one-hop base with a feed-"
        "forward adapter can't do more hops by construction: that row alone says nothing about a carry."
    ),
    "band": (
        "A band that ends before the answer can be read has nothing to hand on. Here every layer of the plain"
        " model is read for the first answer token, by the logit lens and by a linear probe on rows it was "
        "not fitted on (from eight rows)."
    ),
}
