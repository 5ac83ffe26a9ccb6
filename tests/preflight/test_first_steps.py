"""A technique that is on and had next to nothing to act on in the first steps is named once, with the key to change."""

import json
import re

import pytest
from small_runs import Run

from dapo_lit.preflight.idle_settings import unused_techniques

ACTS = {
    "rollout/truncated_frac": 0.06,
    "clip/symmetric_high_frac_last_epoch": 0.006,
    "rollout/length_cv": 0.6,
    "rollout/groups_mixed_frac": 0.85,
}

CLIP = "clip__symmetric_high_frac_last_epoch"


def lines(config, tmp_path, **changes: float | None) -> list[str]:
    metrics = ACTS | {key.replace("__", "/"): value for key, value in changes.items()}
    rows = [{"step": 0, "eval/x": 1}, *({"step": step, **metrics} for step in (1, 2))]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return unused_techniques(config, file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({CLIP: 0.001}, "clip_higher .* 2 steps: clip/symmetric_high_frac_last_epoch .* 0.1% .needs 0.5%"),
        ({"rollout__length_cv": 0.2}, r"token_level_loss .* 0\.20 \(needs 0\.5\).* task\.max_response_tokens"),
        ({"rollout__groups_mixed_frac": 0.95}, r"dynamic_sampling .* 5\.0% \(needs 10\.0%\).*samples_per_prompt"),
        ({"rollout__truncated_frac": 0.0}, r"soft_overlong_punishment .*overlong\.cache_tokens"),
    ],
)
def test_an_idle_technique_is_named_with_its_number_and_a_key(compose, tmp_path, change, said):
    config = compose()
    assert lines(config, tmp_path) == []
    (line,) = lines(config, tmp_path, **change)
    assert re.search(said, line), line


def test_switches_that_are_off_or_idle_by_their_settings_and_metrics_without_a_number_are_left_out(compose, tmp_path):
    never = {CLIP: 0.0}
    assert lines(compose("algorithm.techniques.clip_higher=false"), tmp_path, **never) == []
    assert lines(compose("algorithm.clip.high=0.2"), tmp_path, **never) == []
    assert lines(compose(), tmp_path, **{CLIP: None}) == []


def test_a_run_says_it_once_after_its_first_steps(compose, capsys):
    run = Run(compose("budget.steps=2", "algorithm.optimizer.lr=1e-9"))
    run.fit()
    out = capsys.readouterr().out
    (line,) = (
        line for line in unused_techniques(run.module.config, run.folder.path / "metrics.jsonl") if "clip" in line
    )
    assert out.count(f"warning: {line}") == 1
