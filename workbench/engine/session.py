"""Generation as a user calls it: prompts in, results with traces out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BudgetError, InvalidActionError, ModError, WorkbenchError
from ..models import Cache, HookedModel, match_hooks
from ..trace import Record, Sink, Trace, TraceWriter
from .arguments import Mods, adopt, checked_mods, mods_per_prompt, seeds_for
from .emit import Emitter
from .interrupts import StopFlag, interrupts_set
from .manifest import manifest
from .mod import Mod
from .prompts import Prompt, TokenisedPrompt, split_batch, tokenised
from .request import BoundMod, Request
from .result import Result
from .run import Run
from .sampling import SamplingParams, generator

__all__ = ["Session"]

WORK_PER_TOKEN = 64
"""Default bound on work: forward tokens per output token."""
ACTIVATION_BUDGET = 4 << 30
"""Default bound on captured activations of one run, bytes."""
ON_MOD_ERROR = ("raise", "disable")
ON_INTERRUPT = ("raise", "return")


@dataclass(slots=True, kw_only=True)
class _Job:
    """One call of generate, ready to run."""

    run: Run
    trace: Trace
    requests: list[Request]
    cache: Cache
    seeds: list[tuple[int, int]]
    writer: TraceWriter | None


class Session:
    """A model with mods, ready to generate.

    ``capture`` selects hooks (``"blocks.*.hook_resid_post"``) to keep beside the events, from the same
    passes. ``on_mod_error="disable"`` goes on without a mod that failed. Ctrl-C ends a run with reason
    ``interrupted``; then it is raised again (``on_interrupt="raise"``; see ``last_results``) or the partial
    result is returned (``"return"``). ``sinks`` are called with every record.
    """

    def __init__(
        self,
        model: HookedModel,
        mods: Sequence[Mod] = (),
        *,
        capture: str | Sequence[str] | None = None,
        on_mod_error: str = "raise",
        on_interrupt: str = "raise",
        activation_budget: int = ACTIVATION_BUDGET,
        sinks: Sequence[Sink] = (),
    ) -> None:
        for value, choices in ((on_mod_error, ON_MOD_ERROR), (on_interrupt, ON_INTERRUPT)):
            if value not in choices:
                raise ValueError(f"got {value!r}; choose from {', '.join(choices)}")
        self.model = model
        self.mods = checked_mods(mods)
        self.capture = match_hooks(capture, model.hook_names)
        self.on_mod_error = on_mod_error
        self.on_interrupt = on_interrupt
        self.activation_budget = activation_budget
        self.sinks = tuple(sinks)
        self.last_results: list[Result] = []
        """Results of the latest run, also of one that was interrupted or failed."""
        self._stop = StopFlag()

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        seed: int | Sequence[int] | None = None,
        mods: Mods | None = None,
        max_forward_tokens: int | None = None,
        save: str | Path | None = None,
        overwrite: bool = False,
    ) -> Any:
        """Generate for one prompt (a :class:`Result`) or several in one batch (a list of them).

        ``mods`` replaces the session's, one list for all prompts or one list each. ``seed``: the random
        stream of request ``i`` depends on (seed, i) alone; a list gives each its own, as if alone.
        ``save`` keeps the trace on disk while the run goes; ``overwrite`` allows replacing an older trace there.

        :raises PromptError: an empty, too long or malformed prompt.
        :raises ModError: a mod raised (its exception is the cause); ``error.trace`` holds the run so far.
        :raises InvalidActionError: a mod answered with something its event does not allow.
        :raises BudgetError: the activations to keep would exceed ``activation_budget``.
        """
        for _ in self.stream(
            prompt, max_new_tokens=max_new_tokens, sampling=sampling, seed=seed, mods=mods,
            max_forward_tokens=max_forward_tokens, save=save, overwrite=overwrite,
        ):  # fmt: skip
            pass
        return self.last_results if split_batch(prompt)[1] else self.last_results[0]

    def stream(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        seed: int | Sequence[int] | None = None,
        mods: Mods | None = None,
        max_forward_tokens: int | None = None,
        save: str | Path | None = None,
        overwrite: bool = False,
    ) -> Iterator[Record]:
        """The same run, record by record; ``last_results`` holds the results once it is exhausted."""
        prompts, _ = split_batch(prompt)
        job = self._prepare(
            [tokenised(p, self.model) for p in prompts],
            max_new_tokens=max_new_tokens,
            sampling=sampling or SamplingParams(),
            seed=seed,
            mods=mods_per_prompt(self.mods if mods is None else mods, len(prompts)),
            max_forward_tokens=max_forward_tokens,
            save=save,
            overwrite=overwrite,
        )
        yield from self._play(job)

    def resume(
        self,
        result: Result,
        tool_results: str | Sequence[int] | Sequence[dict[str, Any]],
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        seed: int | None = None,
        mods: Sequence[Mod] | None = None,
        max_forward_tokens: int | None = None,
        save: str | Path | None = None,
        overwrite: bool = False,
    ) -> Result:
        """Go on after a result, from the same KV cache, with what a tool returned.

        ``tool_results`` are tool messages (``{"role": "tool", "content": …}``) for a chat, or text or token
        ids that follow the output as they are. Everything before becomes the prompt of the new result.

        :raises PromptError: messages for a run that was no chat, or a context that is full.
        """
        from .conversation import continued

        prompt = continued(result, tool_results, self.model)
        job = self._prepare(
            [prompt],
            max_new_tokens=max_new_tokens,
            sampling=sampling or (result.request.sampling if result.request else SamplingParams()),
            seed=result.seed if seed is None else seed,
            mods=[checked_mods(self.mods if mods is None else mods)],
            max_forward_tokens=max_forward_tokens,
            save=save,
            overwrite=overwrite,
            after=result,
        )
        for _ in self._play(job):
            pass
        return self.last_results[0]

    def stop(self) -> None:
        """End the run that is going, from another thread: within one token, with reason ``interrupted``."""
        self._stop.set()

    # Preparing -----------------------------------------------------------------------------------------

    def _prepare(
        self,
        prompts: Sequence[TokenisedPrompt],
        *,
        max_new_tokens: int,
        sampling: SamplingParams,
        seed: int | Sequence[int] | None,
        mods: Sequence[Sequence[Mod]],
        max_forward_tokens: int | None,
        save: str | Path | None,
        overwrite: bool,
        after: Result | None = None,
    ) -> _Job:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be 1 or more, got {max_new_tokens}")
        seeds = seeds_for(sampling.seed if seed is None else seed, len(prompts))
        requests = []
        for index, (prompt, own, (value, stream)) in enumerate(zip(prompts, mods, seeds, strict=True)):
            limit = min(max_new_tokens, self.model.n_ctx - len(prompt.tokens))
            patterns = [pattern for mod in own for pattern in mod.capture]
            wanted = {*self.capture, *match_hooks(patterns, self.model.hook_names)}
            request = Request(
                request_id=f"r{index}",
                row=index,
                tokens=list(prompt.tokens),
                prompt_length=len(prompt.tokens),
                mods=[BoundMod(mod) for mod in own],
                sampling=sampling,
                stream=generator(value, stream),
                max_new_tokens=limit,
                max_forward_tokens=max_forward_tokens or WORK_PER_TOKEN * max_new_tokens,
                capture=tuple(name for name in self.model.hook_names if name in wanted),
                conversation=prompt.conversation,
            )
            self._check_budget(request)
            requests.append(request)
        cache = self.model.new_cache(len(requests)) if after is None else adopt(after, requests[0])
        return self._job(requests, cache, seeds, save, overwrite)

    def _job(
        self,
        requests: list[Request],
        cache: Cache,
        seeds: list[tuple[int, int]],
        save: str | Path | None,
        overwrite: bool,
    ) -> _Job:
        about = manifest(self.model, requests, on_mod_error=self.on_mod_error, seeds=seeds)
        trace = Trace(about)
        writer = None if save is None else TraceWriter(save, about, overwrite=overwrite)
        sinks: list[Sink] = [trace, *([writer] if writer else []), *self.sinks]
        self._stop = StopFlag()
        run = Run(
            self.model,
            requests,
            cache,
            Emitter(str(about["run_id"]), sinks, self.model.tokenizer),
            on_mod_error=self.on_mod_error,
            activation_budget=self.activation_budget,
            stop=self._stop,
        )
        return _Job(run=run, trace=trace, requests=requests, cache=cache, seeds=seeds, writer=writer)

    def _check_budget(self, request: Request) -> None:
        """Refuse before the run what would not fit; residual-sized hooks are what the estimate knows."""
        positions = len(request.tokens) + request.max_new_tokens
        bytes_each = len(request.capture) * self.model.d_model * self.model.dtype.itemsize
        if positions * bytes_each > self.activation_budget:
            raise BudgetError(
                f"capturing {len(request.capture)} hooks over {positions} positions needs about "
                f"{positions * bytes_each / 2**20:.0f} MiB; activation_budget is "
                f"{self.activation_budget / 2**20:.0f} MiB. Capture fewer hooks, shorten the run or raise it."
            )

    # Playing -------------------------------------------------------------------------------------------

    def _play(self, job: _Job) -> Iterator[Record]:
        shown = 0
        status = "failed"
        try:
            with interrupts_set(self._stop):
                for _ in job.run:
                    yield from job.trace.records[shown:]
                    shown = len(job.trace.records)
            status = "interrupted" if self._stop() else "finished"
            yield from job.trace.records[shown:]
        except (ModError, InvalidActionError) as error:
            error.trace = job.trace  # type: ignore[union-attr]
            raise
        except KeyboardInterrupt:
            # Raised inside a mod or a forward pass, which then never happened; the run has ended itself.
            self._stop.by_keyboard = True
            status = "interrupted"
        except GeneratorExit:
            job.run.end("interrupted")
            status = "interrupted"
            raise
        finally:
            self._close(job, status)
        if self._stop.by_keyboard and self.on_interrupt == "raise":
            raise KeyboardInterrupt("the run was interrupted; session.last_results holds what there is")

    def _close(self, job: _Job, status: str) -> None:
        job.trace.run["status"] = status
        self.last_results = [
            self._result(job, request, seed) for request, (seed, _) in zip(job.requests, job.seeds, strict=True)
        ]
        if job.writer is not None:
            try:
                job.writer.close(job.trace.run, status)
            except WorkbenchError as error:
                # The run itself went well and its trace is in memory: say it, do not lose it.
                warnings.warn(str(error), stacklevel=3)

    def _result(self, job: _Job, request: Request, seed: int) -> Result:
        return Result(
            request_id=request.request_id,
            text=self.model.tokenizer.decode(request.generated, skip_special=True),
            tokens=tuple(request.generated),
            prompt_tokens=tuple(request.tokens[: request.prompt_length]),
            reason=request.reason or "interrupted",
            trace=job.trace,
            tool_calls=request.tool_calls,
            error=request.error,
            seed=seed,
            forward_tokens=request.fed,
            conversation=request.conversation,
            cache=job.cache,
            request=request,
        )
