"""Where tensors are made and which kernels may run, for a device that this machine does not have.

Lightning builds a module under the device of its strategy, and a user may set a default device: whatever is made
without one lands there. torch's device `meta` stands for a GPU: it has no values, so a tensor that lands there and is
used fails.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_attention import FAMILIES, LENGTHS, build, tokens
from test_torch_engine import ARCHITECTURES, make_engine, make_model, make_requests
from tiny_policy import TINY
from torch.utils._device import _device_constructors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import dapo_lit
from dapo_lit.engines.protocol import Sampling
from dapo_lit.lit.module import DAPOModule
from dapo_lit.policy.attention import NAME, layout, packed_hidden
from dapo_lit.policy.base import BaseSpec, prepare_base
from dapo_lit.policy.load import load_model

ROOT = Path(dapo_lit.__file__).parent.parent
FILES = sorted(file for name in ("dapo_lit", "dapo_lit_tools") for file in (ROOT / name).rglob("*.py"))
FACTORIES = {f"torch.{function.__name__}" for function in _device_constructors()} | {"torch.Generator"}


def called(node: ast.expr) -> str:
    """A dotted name; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := called(node.value)):
        return f"{before}.{node.attr}"
    return ""


def makes_tensors(name: str) -> bool:
    """A factory of torch's, a generator, or a module with parameters of its own."""
    module = getattr(torch.nn, name.removeprefix("nn."), None) if name.startswith("nn.") else None
    return name in FACTORIES or (inspect.isclass(module) and "device" in inspect.signature(module).parameters)


def without_device(tree: ast.AST) -> Iterator[int]:
    """Lines of calls that make a tensor, a generator or a module and name no device."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and makes_tensors(called(node.func)):
            named = {keyword.arg for keyword in node.keywords}
            is_generator = called(node.func) == "torch.Generator"
            if "device" not in named and not (is_generator and node.args):
                yield node.lineno


@pytest.mark.parametrize("code", ["torch.zeros(2)", "torch.Generator()", "nn.Linear(2, 1)", "x + torch.arange(n)[:1]"])
def test_a_call_without_a_device_is_found_and_one_with_it_is_not(code):
    assert list(without_device(ast.parse(code))) == [1]
    with_device = code.replace("()", "(device='cpu')").replace("2)", "2, device='cpu')").replace("1)", "1, device=d)")
    assert not list(without_device(ast.parse(with_device.replace("(n)", "(n, device=d)"))))


def test_every_factory_call_and_every_generator_has_its_device_written():
    found = {str(file.relative_to(ROOT)): list(without_device(ast.parse(file.read_text()))) for file in FILES}
    assert {file: lines for file, lines in found.items() if lines} == {}


KINDS = {
    "plain": (),
    "adapters": ("policy.lora={rank: 2, alpha: 4}",),
    "a reference": ("algorithm=grpo",),
    "adapters, a critic and its own reference": ("algorithm=ppo", "policy.lora={rank: 2, alpha: 4}"),
    "a critic and a reference": ("algorithm=ppo",),
    "a reference in 16 bits": ("algorithm=grpo", "trainer.sharding.dtype=bfloat16"),
}


def small_policy() -> PreTrainedModel:
    sizes = dict(TINY)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(sizes.pop("model_type"), vocab_size=20, **sizes))


def weights_of(module: DAPOModule) -> dict[str, torch.Tensor]:
    reference = module.reference.model.state_dict().items() if module.reference else ()
    return dict(module.state_dict()) | {f"reference.{name}": tensor for name, tensor in reference}


@pytest.mark.parametrize("kind", KINDS)
def test_models_and_optimiser_built_under_another_device_are_those_built_without(compose, kind):
    config = compose(*KINDS[kind])
    built = []
    for device in ("cpu", "meta"):
        module, policy = DAPOModule(config, small_policy), small_policy()
        module.build_policy = lambda policy=policy: policy
        with torch.device(device):
            module.configure_model()
            optimizer = module.configure_optimizers()
        assert {p.device.type for group in optimizer.param_groups for p in group["params"]} == {"cpu"}
        built.append(weights_of(module))
    assert built[0].keys() == built[1].keys()
    assert all(torch.equal(tensor, built[1][name]) for name, tensor in built[0].items())


def test_a_base_policy_and_a_loaded_one_do_not_depend_on_the_device_of_the_context(tmp_path):
    spec = BaseSpec("small", TINY, "0123456789+=")
    folders = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            folders.append(prepare_base(spec, tmp_path / device))
            assert load_model(folders[-1]).device.type == "cpu"
    files = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert files[0] == files[1]


@pytest.fixture
def masked_calls(monkeypatch) -> list[bool]:
    """For each attention call with a mask: whether cuDNN's kernel could have been chosen for it on a GPU."""
    calls: list[bool] = []
    original = F.scaled_dot_product_attention

    def recorded(query, key, value, attn_mask=None, **options):
        if attn_mask is not None:
            calls.append(torch.backends.cuda.cudnn_sdp_enabled())
        return original(query, key, value, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    return calls


def test_the_sampler_leaves_no_kernel_open_for_prompts_of_unequal_lengths_in_16_bits(masked_calls):
    model = make_model(ARCHITECTURES["qwen2"]).to(torch.bfloat16)
    engine = make_engine(model, device=torch.device("cpu"), dtype=torch.bfloat16, max_batch_size=8)
    assert len(list(engine.generate(make_requests(5, 2), Sampling(12)))) == 10
    assert len(masked_calls) > 12  # prefills and decode steps
    assert not any(masked_calls)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "a row of its own"])
def test_the_trainer_leaves_no_kernel_open_for_a_window(masked_calls, packed):
    model = build(FAMILIES["mistral, a window of 7"], torch.bfloat16)
    if packed:
        packed_hidden(model, torch.cat(tokens(LENGTHS)), layout(LENGTHS))
    else:
        model.set_attn_implementation(NAME)
        model(input_ids=torch.arange(31)[None])
    assert masked_calls
    assert not any(masked_calls)


def test_every_file_that_calls_torchs_attention_has_chosen_its_kernels():
    """Also those that call transformers' function for it."""
    for file in FILES:
        text = file.read_text()
        if "scaled_dot_product_attention(" in text or "sdpa_attention_forward" in text:
            assert "\nexclude_cudnn_attention()" in text, file
