"""A model and an adapter come in; a model whose middle band carries its state from position to position goes out."""

from .adapters import (
    ADAPTERS,
    Adapter,
    ConcatLinear,
    GatedSum,
    Interpolate,
    LinearAdd,
    LowRankInjection,
    Replace,
    load_adapter,
    make_adapter,
    save_adapter,
)
from .controls import Control, answer_scores, measure_controls, step_means, wilson
from .cost import Cost, token_layers
from .decodability import LayerReading, band_warning, decodability
from .dynamics import AttentionShares, LoopMotion, Orbit, attention_shares, loop_motion, orbit
from .effects import Effect, effect_grid
from .entry import CarryRun, run_carry
from .experiment import CONTROLS, Budget, demo_model, export_demo, run_controls, train_demo
from .generation import Generated
from .interventions import (
    GradientNorms,
    detach_every,
    frozen,
    noise,
    only_at,
    patched,
    scaled,
    shuffled,
    step_mean,
    swapped,
    together,
    zero,
)
from .lenses import Exit, JacobianLens, Lens, LogitLens, fit_jacobian_lens
from .model import CarryModel
from .optimise import Plan, Training
from .panel import Check, CostPanel, check_trace, cost_panel
from .pausing import pausing
from .readouts import Guess, Reading, Trajectory, readings, step_concepts, table_text, trajectories
from .reference import reference_generate, reference_logits, reference_states
from .runner import BandRunner, Kept, Where
from .scan import MODES, Do, Scan
from .settings import CarrySettings, PauseToken, find_pause_token
from .spans import Batch, Layout, pack
from .systems import FURTHER, SYSTEMS, System
from .tables import controls_table, fill_page
from .task import PointerChase, Problems
from .toy import train_base
from .trace import CarryTrace
from .tracing import prompt_ids
from .training import Task, fit

__all__ = [
    "ADAPTERS",
    "CONTROLS",
    "FURTHER",
    "MODES",
    "SYSTEMS",
    "Adapter",
    "AttentionShares",
    "BandRunner",
    "Batch",
    "Budget",
    "CarryModel",
    "CarryRun",
    "CarrySettings",
    "CarryTrace",
    "Check",
    "ConcatLinear",
    "Control",
    "Cost",
    "CostPanel",
    "Do",
    "Effect",
    "Exit",
    "GatedSum",
    "Generated",
    "GradientNorms",
    "Guess",
    "Interpolate",
    "JacobianLens",
    "Kept",
    "LayerReading",
    "Layout",
    "Lens",
    "LinearAdd",
    "LogitLens",
    "LoopMotion",
    "LowRankInjection",
    "Orbit",
    "PauseToken",
    "Plan",
    "PointerChase",
    "Problems",
    "Reading",
    "Replace",
    "Scan",
    "System",
    "Task",
    "Training",
    "Trajectory",
    "Where",
    "answer_scores",
    "attention_shares",
    "band_warning",
    "check_trace",
    "controls_table",
    "cost_panel",
    "decodability",
    "demo_model",
    "detach_every",
    "effect_grid",
    "export_demo",
    "fill_page",
    "find_pause_token",
    "fit",
    "fit_jacobian_lens",
    "frozen",
    "load_adapter",
    "loop_motion",
    "make_adapter",
    "measure_controls",
    "noise",
    "only_at",
    "orbit",
    "pack",
    "patched",
    "pausing",
    "prompt_ids",
    "readings",
    "reference_generate",
    "reference_logits",
    "reference_states",
    "run_carry",
    "run_controls",
    "save_adapter",
    "scaled",
    "shuffled",
    "step_concepts",
    "step_mean",
    "step_means",
    "swapped",
    "table_text",
    "together",
    "token_layers",
    "train_base",
    "train_demo",
    "trajectories",
    "wilson",
    "zero",
]
