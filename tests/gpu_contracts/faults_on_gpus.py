"""Faults that only a GPU, NCCL or several servers would show, each put back into a copy: the contract suite must fail.

make test-gpu-faults              # all, in the environment of vLLM
make test-gpu-faults ARGS=sleep   # those with a word in their name
"""

from mutations import Fault, main

START = "tests/gpu_contracts/test_vllm_start.py"
SLEEP = "tests/gpu_contracts/test_vllm_sleep.py"
SERVERS = "tests/gpu_contracts/test_servers.py"
ATTENTION = "tests/gpu_contracts/test_varlen_attention.py"

FAULTS_ON_GPUS = (
    Fault("engines of a node all go to the first GPU at tensor parallelism 1", "engines/vllm_engine/options.py",
        "    if host.grouped:\n", "    if settings.tensor_parallel > 1:\n", (START, "-k", "own_gpu")),
    Fault("an engine wants 92 % of the GPU to be free", "engines/vllm_engine/options.py",
        'options["gpu_memory_utilization"] = memory_frac(settings, host.gpu_bytes, weight_bytes)',
        "memory_frac(settings, host.gpu_bytes, weight_bytes)", (START, "-k", "restarts")),
    Fault("the log-probs are those of the raw logits", "engines/vllm_engine/options.py",
        '"logprobs_mode": "processed_logprobs",', '"logprobs_mode": "raw_logprobs",',
        (START, "-k", "names_of_the_installed")),
    Fault("the ranks of an engine have different seeds", "engines/vllm_engine/options.py",
        '"seed": host.rank // settings.tensor_parallel,', '"seed": host.rank,', (START, "-k", "own_gpu")),
    Fault("waking maps weights and cache at once", "engines/vllm_engine/engine.py",
        "self.llm.wake_up(tags=[part])", 'self.llm.wake_up(tags=["weights", "kv_cache"])',
        (SLEEP, "-k", "loaded_before")),
    Fault("the cache stays asleep after a sync", "engines/vllm_engine/engine.py",
        'self._wake("kv_cache")', "pass", (SLEEP, "-k", "loaded_before")),
    Fault("keys and values are repeated for grouped heads", "policy/attention.py",
        "if repeats > 1 and takes_grouped_heads():", "if repeats > 99 and takes_grouped_heads():",
        (ATTENTION, "-k", "not_repeated")),
    Fault("the window of the kernel is one token too wide", "policy/attention.py", "window - 1, 0)", "window, 0)",
        (ATTENTION, "-k", "separate_sequences and window")),
    Fault("logits in 16 bits are rounded on a GPU too", "policy/head.py",
        "    if has_wide_products(weight):\n        return ",
        "    if has_wide_products(weight) and weight.dim() == 3:\n        return ",
        ("tests/gpu_contracts/test_wide_products.py",)),
    Fault("AdamW is not fused", "step/optimizer.py", 'return {"fused": True} if', "return {} if",
        ("tests/gpu_contracts/test_kernels.py", "-k", "optimiser")),
    Fault("token weights stay on the host", "step/updates.py",
        "        weights = weights.to(self.forward.device)\n", "", ("tests/lit/test_whole_update.py",)),
    Fault("more ranks than servers is refused", "engines/vllm_server/servers.py",
        "self._own = self._led or [ranks.rank % count]", "self._own = [self._led[0], *self._led[1:]]",
        (SERVERS, "-k", "orders")),
    Fault("the workers of the second server get the ranks of the first", "engines/vllm_server/transfer.py",
        "1 + sum(self.sizes[:index])", "1 + index", (SERVERS, "-k", "nccl")),
    Fault("a group over NCCL is kept when a server was started again", "engines/vllm_server/transfer.py",
        " and self._fleet.have(self._label)", "", (SERVERS, "-k", "nccl")),
    Fault("a transfer that fails before its first tensor takes none of them", "engines/vllm_server/transfer.py",
        "            self._source.begin()\n", "", (SERVERS, "-k", "fails_while")),
    Fault("every rank gives its server orders", "engines/vllm_server/servers.py",
        "self._led = list(range(ranks.rank, count, ranks.size))",
        "self._led = list(range(ranks.rank % count, count, ranks.size))", (SERVERS, "-k", "orders")),
    Fault("a lost server ends the step", "engines/vllm_server/stream.py",
        "if not self._servers.usable:\n            raise error", "if self._servers.lost:\n            raise error",
        (SERVERS, "-k", "killed_one_returns")),
    Fault("requests to a server have no seed of their own", "engines/vllm_engine/stream.py",
        '"seed": request_seed(sampling.seed, request.key, num_tokens),', '"seed": 1,',
        (SERVERS, "-k", "killed_one_returns")),
    Fault("the plan leaves out the engine that stays on the GPU", "forecast/memory.py",
        " + sum(self.engine.values())", "", ("tests/test_plan.py", "-k", "what_an_engine_keeps")),
    Fault("the mismatch alarm goes by the dtype of the shards", "lit/callbacks.py",
        "{config.compute_dtype, config.engine_dtype(uses_gpu(config.trainer))}", "{config.policy.dtype}",
        ("tests/lit/test_measured.py",)),
    Fault("adapters are made on the device of the context", "policy/lora.py",
        'torch.zeros(parameter.shape, device="cpu")', "torch.zeros(parameter.shape)",
        ("tests/test_devices.py", "-k", "built_under")),
    Fault("cuDNN's attention may be chosen for a mask", "kernels.py",
        "enable_cudnn_sdp(False)", "enable_cudnn_sdp(True)", ("tests/test_devices.py", "-k", "kernel_open")),
    Fault("vLLM computes in float32 on a GPU", "config/run.py",
        'return "bfloat16" if vllm and on_gpu', 'return "bfloat16" if vllm and not on_gpu',
        ("tests/engines/test_vllm_settings.py", "-k", "unless_asked")),
)  # fmt: skip

if __name__ == "__main__":
    main(FAULTS_ON_GPUS)
