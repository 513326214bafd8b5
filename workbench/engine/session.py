"""Generation as a user calls it: prompts in, results with traces out."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BudgetError, PromptError, TraceError, WorkbenchError
from ..models import HookedModel, match_hooks
from ..trace import Record, Sink, Trace, TraceWriter
from .arguments import Mods, Options, Seeds, StreamKey, adopt, checked_mods, going_on, mods_per_prompt, seeds_for
from .conversation import continued
from .emit import Emitter
from .interrupts import StopFlag, interrupts_set
from .manifest import manifest
from .mod import Mod
from .prompts import Prompt, TokenisedPrompt, split_batch, tokenised
from .request import BoundMod, Lane, Request
from .result import Result
from .run import Run
from .sampling import SamplingParams, Stream

__all__ = ["Session"]

ACTIVATION_BUDGET = 4 << 30
"""Default bound on captured activations of one run, bytes."""
ON_MOD_ERROR = ("raise", "disable")
ON_INTERRUPT = ("raise", "return")
END = object()
SERIAL = itertools.count()
"""Numbers the runs of this process, for request ids that mods may key their own dicts by."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """One call of generate, ready to run."""

    run: Run
    trace: Trace
    requests: list[Request]
    lanes: list[Lane]
    streams: list[StreamKey]
    writer: TraceWriter | None
    stop: StopFlag
    results: list[Result] = field(default_factory=list)
    """Filled when the run ends; the session's ``last_results`` may be another thread's by then."""


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
        self._running: set[_Job] = set()

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        seed: Seeds = None,
        mods: Mods | None = None,
        max_forward_tokens: int | None = None,
        save: str | Path | None = None,
        overwrite: bool = False,
    ) -> Any:
        """Generate for one prompt (a :class:`Result`) or several in one batch (a list of them).

        ``mods`` replaces the session's, one list for all prompts or one list each. ``seed``: the random
        stream of request ``i`` depends on (seed, i) alone; a list gives each its own, as if alone, and
        ``(result.seed, result.index)`` in it the stream of one request of an earlier batch.
        ``save`` keeps the trace on disk while the run goes; ``overwrite`` allows replacing an older trace there.

        :raises PromptError: an empty, too long or malformed prompt.
        :raises ModError: a mod raised (its exception is the cause); ``error.trace`` holds the run so far.
        :raises InvalidActionError: a mod answered with something its event does not allow.
        :raises BudgetError: the activations to keep would exceed ``activation_budget``.
        """
        prompts, several = split_batch(prompt)
        options = Options(
            max_new_tokens=max_new_tokens, sampling=sampling or SamplingParams(), seed=seed,
            max_forward_tokens=max_forward_tokens, save=save, overwrite=overwrite,
        )  # fmt: skip
        results = self.play([tokenised(p, self.model) for p in prompts], options, mods)
        return results if several else results[0]

    def stream(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        seed: Seeds = None,
        mods: Mods | None = None,
        max_forward_tokens: int | None = None,
        save: str | Path | None = None,
        overwrite: bool = False,
    ) -> Iterator[Record]:
        """The same run, record by record; ``last_results`` holds the results once it is exhausted.

        Bad arguments raise here, not at the first record. Leaving early ends the run (``interrupted``).
        """
        prompts, _ = split_batch(prompt)
        options = Options(
            max_new_tokens=max_new_tokens, sampling=sampling or SamplingParams(), seed=seed,
            max_forward_tokens=max_forward_tokens, save=save, overwrite=overwrite,
        )  # fmt: skip
        return self._records(self._prepare([tokenised(p, self.model) for p in prompts], options, mods))

    def resume(
        self,
        result: Result,
        tool_results: str | Sequence[int] | Sequence[dict[str, Any]] | None = None,
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        seed: int | None = None,
        mods: Sequence[Mod] | None = None,
        max_forward_tokens: int | None = None,
        save: str | Path | None = None,
        overwrite: bool = False,
    ) -> Result:
        """Go on after a result, from the same KV cache, with what a tool returned, or simply go on.

        ``tool_results`` are tool messages (``{"role": "tool", "content": …}``) for a chat, or text or token
        ids that follow the output as they are, or None. Everything before becomes the prompt of the new
        result. Several results may be resumed from one: each gives what a fresh run would. Edits of activations end
        with their run, mods begin anew. An interrupted run goes on with the random numbers left to it: without
        mods both together are the run that was not interrupted.

        :raises PromptError: messages for a run that was no chat, a context that is full, a released cache.
        """
        before = SamplingParams() if result.request is None else result.request.sampling
        options = Options(
            max_new_tokens=max_new_tokens, sampling=sampling or before, seed=result.seed if seed is None else seed,
            max_forward_tokens=max_forward_tokens, save=save, overwrite=overwrite,
        )  # fmt: skip
        job = self._prepare([continued(result, tool_results, self.model)], options, mods, after=result)
        return self._results(job)[0]

    def play(self, prompts: Sequence[TokenisedPrompt], options: Options, mods: Mods | None = None) -> list[Result]:
        """Run prompts that are token ids already: what ``generate`` does, and what a replay needs."""
        return self._results(self._prepare(prompts, options, mods))

    def stop(self) -> None:
        """End the runs that are going, from another thread: within one token, with reason ``interrupted``."""
        for job in tuple(self._running):
            job.stop.set()

    # Preparing -----------------------------------------------------------------------------------------

    def _prepare(
        self,
        prompts: Sequence[TokenisedPrompt],
        options: Options,
        mods: Mods | None,
        after: Result | None = None,
    ) -> _Job:
        streams = seeds_for(options.seed, len(prompts))
        own = mods_per_prompt(self.mods if mods is None else mods, len(prompts))
        serial = next(SERIAL)
        requests = [
            self._request(prompt, options, own[index], f"r{index}", serial) for index, prompt in enumerate(prompts)
        ]
        for index, request in enumerate(requests):
            request.row = index
            self._check_budget(request)
        if after is None:
            cache = self.model.new_cache(len(requests))
            lanes = [Lane(cache=cache, writer=request) for request in requests]
        else:
            lanes = [adopt(after, requests[0])]
            streams = [going_on(after, lanes[0], streams[0][0], told=len(prompts[0].tokens))]
        for request, stream in zip(requests, streams, strict=True):
            request.stream = Stream(*stream)
            request.taken = request.stream.taken
        return self._job(requests, lanes, streams, options)

    def _request(
        self, prompt: TokenisedPrompt, options: Options, mods: Sequence[Mod], name: str, serial: int
    ) -> Request:
        patterns = [pattern for mod in mods for pattern in mod.capture]
        wanted = {*self.capture, *match_hooks(patterns, self.model.hook_names)}
        return Request(
            request_id=name,
            key=f"{name}@{serial}",
            row=0,
            tokens=list(prompt.tokens),
            prompt_length=len(prompt.tokens),
            mods=[BoundMod(mod) for mod in mods],
            sampling=options.sampling,
            stream=Stream(0, 0),
            max_new_tokens=min(options.max_new_tokens, self.model.n_ctx - len(prompt.tokens)),
            max_forward_tokens=options.work,
            capture=tuple(name for name in self.model.hook_names if name in wanted),
            conversation=prompt.conversation,
        )

    def _job(self, requests: list[Request], lanes: list[Lane], streams: list[StreamKey], options: Options) -> _Job:
        about = manifest(self.model, requests, on_mod_error=self.on_mod_error, streams=streams)
        trace = Trace(about)
        writer = None if options.save is None else TraceWriter(options.save, about, overwrite=options.overwrite)
        sinks: list[Sink] = [trace, *([writer] if writer else []), *self.sinks]
        cache, stop = lanes[0].cache, StopFlag()
        if cache is None:
            raise PromptError("this result's cache was released: use generate()")
        run = Run(
            self.model,
            requests,
            cache,
            Emitter(str(about["run_id"]), sinks, self.model.tokenizer),
            on_mod_error=self.on_mod_error,
            activation_budget=self.activation_budget,
            stop=stop,
        )
        return _Job(run=run, trace=trace, requests=requests, lanes=lanes, streams=streams, writer=writer, stop=stop)

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

    def _results(self, job: _Job) -> list[Result]:
        with interrupts_set(job.stop):  # between the records too: nobody but us is there
            for _ in self._records(job):
                pass
        self._raise_interrupt(job)
        return job.results

    def _records(self, job: _Job) -> Iterator[Record]:
        shown, status, steps = 0, "failed", iter(job.run)
        self._running.add(job)
        try:
            going = True
            while going:
                # Not held across the yield: in the consumer's own code Ctrl-C is the consumer's.
                with interrupts_set(job.stop):
                    going = next(steps, END) is not END
                yield from job.trace.records[shown:]
                shown = len(job.trace.records)
            status = "interrupted" if job.stop() else "finished"
        except WorkbenchError as error:
            error.trace = job.trace
            raise
        except KeyboardInterrupt:
            # Raised inside a mod or a forward pass, which then never happened; the run has ended itself.
            job.stop.by_keyboard = True
            status = "interrupted"
        except GeneratorExit:
            job.run.end("interrupted")
            status = "interrupted"
            raise
        finally:
            with interrupts_set(job.stop):
                self._running.discard(job)
                self._close(job, status)
        self._raise_interrupt(job)

    def _raise_interrupt(self, job: _Job) -> None:
        if job.stop.by_keyboard and self.on_interrupt == "raise":
            raise KeyboardInterrupt("the run was interrupted; session.last_results holds what there is")

    def _close(self, job: _Job, status: str) -> None:
        job.trace.run["status"] = status
        job.results = self.last_results = [self._result(job, number) for number in range(len(job.requests))]
        if job.writer is not None:
            try:
                job.writer.close(job.trace.run, status)
            except TraceError as error:
                # The run itself went well and its trace is in memory: say it, do not lose it.
                warnings.warn(str(error), stacklevel=3)

    def _result(self, job: _Job, number: int) -> Result:
        request, (seed, index, *_) = job.requests[number], job.streams[number]
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
            index=index,
            forward_tokens=request.fed,
            conversation=request.conversation,
            lane=job.lanes[number],
            request=request,
        )
