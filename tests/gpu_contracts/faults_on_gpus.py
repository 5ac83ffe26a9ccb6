"""Faults that only a GPU, NCCL or several servers would show, each put back into a copy: the contract suite must fail.

make test-gpu-faults              # all, in the environment of vLLM
make test-gpu-faults ARGS=sleep   # those with a word in their name
"""

from mutations import Fault, main

START = "tests/gpu_contracts/test_vllm_start.py"
SLEEP = "tests/gpu_contracts/test_vllm_sleep.py"
SERVERS = "tests/gpu_contracts/test_servers.py"
ATTENTION = "tests/gpu_contracts/test_varlen_attention.py"
GRAPHS = "tests/gpu_contracts/test_cuda_graphs.py"
FIXED = "tests/engines/test_fixed_rows.py"

FAULTS_ON_GPUS = (
    Fault(
        "engines of a node all go to the first GPU at tensor parallelism 1",
        "engines/vllm_engine/options.py",
        "    if host.grouped:\n",
        "    if settings.tensor_parallel > 1:\n",
        (START, "-k", "own_gpu"),
    ),
    Fault(
        "an engine wants 92 % of the GPU to be free",
        "engines/vllm_engine/options.py",
        'options["gpu_memory_utilization"] = memory_frac(settings, host.gpu_bytes, weight_bytes)',
        "memory_frac(settings, host.gpu_bytes, weight_bytes)",
        (START, "-k", "restarts"),
    ),
    Fault(
        "the log-probs are those of the raw logits",
        "engines/vllm_engine/options.py",
        '"logprobs_mode": "processed_logprobs",',
        '"logprobs_mode": "raw_logprobs",',
        (START, "-k", "names_of_the_installed"),
    ),
    Fault(
        "the ranks of an engine have different seeds",
        "engines/vllm_engine/options.py",
        '"seed": host.rank // settings.tensor_parallel,',
        '"seed": host.rank,',
        (START, "-k", "own_gpu"),
    ),
    Fault(
        "waking maps weights and cache at once",
        "engines/vllm_engine/engine.py",
        "self._llm.wake_up(tags=[part])",
        'self._llm.wake_up(tags=["weights", "kv_cache"])',
        (SLEEP, "-k", "loaded_before"),
    ),
    Fault(
        "the cache stays asleep after a sync",
        "engines/vllm_engine/engine.py",
        '        self._wake("kv_cache")\n        if self._llm.reset_prefix_cache()',
        "        if self._llm.reset_prefix_cache()",
        (SLEEP, "-k", "loaded_before"),
    ),
    Fault(
        "selective checkpointing recomputes attention",
        "policy/sharding.py",
        ' or "varlen_attn" in str(operator)',
        "",
        (ATTENTION, "-k", "selective"),
    ),
    Fault(
        "keys and values are repeated for grouped heads",
        "policy/attention.py",
        'if repeats > 1 and "enable_gqa" in',
        'if repeats > 99 and "enable_gqa" in',
        (ATTENTION, "-k", "not_repeated"),
    ),
    Fault(
        "the window of the kernel is one token too wide",
        "policy/attention.py",
        "window - 1, 0)",
        "window, 0)",
        (ATTENTION, "-k", "separate_sequences and window"),
    ),
    Fault(
        "logits in 16 bits are rounded on a GPU too",
        "policy/head.py",
        "    if has_wide_products(weight):\n        return ",
        "    if has_wide_products(weight) and weight.dim() == 3:\n        return ",
        ("tests/gpu_contracts/test_wide_products.py",),
    ),
    Fault(
        "AdamW is not fused",
        "step/optimizer_steps.py",
        'return {"fused": True} if',
        "return {} if",
        ("tests/gpu_contracts/test_update_kernel.py",),
    ),
    Fault(
        "the workers of the second server get the ranks of the first",
        "engines/vllm_server/transfer.py",
        "1 + sum(sizes[:index])",
        "1 + index",
        (SERVERS, "-k", "nccl"),
    ),
    Fault(
        "more ranks than servers is refused",
        "engines/vllm_server/servers.py",
        "self._own = self._led or [ranks.rank % count]",
        "self._own = [self._led[0], *self._led[1:]]",
        (SERVERS, "-k", "orders"),
    ),
    Fault(
        "every rank gives its server orders",
        "engines/vllm_server/servers.py",
        "self._led = list(range(ranks.rank, count, ranks.size))",
        "self._led = list(range(ranks.rank % count, count, ranks.size))",
        (SERVERS, "-k", "orders"),
    ),
    Fault(
        "a lost server ends the step",
        "engines/vllm_server/stream.py",
        "if not self._servers.usable:\n            raise error",
        "if self._servers.lost:\n            raise error",
        (SERVERS, "-k", "killed_one_returns"),
    ),
    Fault(
        "requests to a server have no seed of their own",
        "engines/vllm_server/stream.py",
        '"seed": request_seed(self._sampling.seed, request.key, num_tokens),',
        '"seed": 1,',
        (SERVERS, "-k", "killed_one_returns"),
    ),
    Fault(
        "the plan leaves out the engine that stays on the GPU",
        "forecast/memory.py",
        " + sum(self.engine.values())",
        "",
        ("tests/test_plan.py", "-k", "48_gb"),
    ),
    Fault(
        "the mismatch alarm goes by the dtype of the shards",
        "lit/callbacks.py",
        "if config.compute_dtype ==",
        "if config.policy.dtype ==",
        ("tests/lit/test_mismatch_alarm.py",),
    ),
    Fault(
        "graphs: a sync replaces the matrices that are not fused, so graphs read the old ones",
        "engines/torch_engine/fused_weights.py",
        "                    slot.copy_(tensor.reshape(slot.shape))\n",
        "                    fused, new = slot._base is not None, tensor.reshape(slot.shape).to(slot, copy=True)\n"
        '                    slot.copy_(new) if fused else setattr(slot, "data", new)\n',
        (GRAPHS, "-k", "last_sync"),
    ),
    Fault(
        "graphs: the noise is a constant of the graph",
        "engines/torch_engine/fixed_rows.py",
        "self._uniforms[:num_rows].copy_(torch.from_numpy(uniforms))",
        "self._uniforms = torch.cat([torch.from_numpy(uniforms), self._uniforms[num_rows:]])",
        (GRAPHS, "-k", "bit_for_bit and qwen3"),
    ),
    Fault(
        "graphs: the slot is a constant of the graph",
        "engines/torch_engine/fixed_rows.py",
        "self._slot.fill_(slot)",
        "self._slot = torch.full_like(self._slot, slot)",
        (GRAPHS, "-k", "bit_for_bit and qwen3"),
    ),
    Fault(
        "graphs: one graph draws at all temperatures",
        "engines/torch_engine/fixed_rows.py",
        '("draw", self._rows, *settings)',
        '("draw", self._rows)',
        (GRAPHS, "-k", "temperature"),
    ),
    Fault(
        "graphs: a nucleus is looked for within a graph",
        "engines/torch_engine/inverse_cdf.py",
        " or sampling.top_p == 1 or sampling.top_k > 0\n",
        " or sampling.top_p <= 1\n",
        (GRAPHS, "-k", "temperature"),
    ),
    Fault(
        "graphs: they outlive the buffers that they read",
        "engines/torch_engine/fixed_rows.py",
        "        self.graphs.clear()\n",
        "",
        (GRAPHS, "-k", "grow"),
    ),
    Fault(
        "graphs: one graph decodes all lengths of the cache",
        "engines/torch_engine/fixed_rows.py",
        '("decode", self._rows, self.capacity)',
        '("decode", self._rows)',
        (GRAPHS, "-k", "bit_for_bit and qwen3"),
    ),
    Fault(
        "graphs: a failure to replay is taken for one to capture",
        "engines/torch_engine/cuda_graphs.py",
        "            graph.replay()\n            return\n",
        "            try:\n                return graph.replay()\n"
        "            except RuntimeError:\n                return step()\n",
        (GRAPHS, "-k", "comes_later"),
    ),
    Fault(
        "fixed shapes: the slots of a new layout hold what the memory held",
        "engines/torch_engine/fixed_rows.py",
        "else flat.zero_()",
        "else flat",
        (FIXED, "-k", "nan"),
    ),
    Fault(
        "fixed shapes: a row finds what the one before left in its place",
        "engines/torch_engine/fixed_rows.py",
        "            layer.zero_()  # weight",
        "            # weight",
        (FIXED, "-k", "nan"),
    ),
    Fault(
        "fixed shapes: tokens see slots that are not written yet",
        "engines/torch_engine/decoder.py",
        " & (slots <= slot)\n",
        "\n",
        (FIXED, "-k", "over_refills"),
    ),
    Fault(
        "fixed shapes: the room depends on what was sampled before",
        "engines/torch_engine/fixed_rows.py",
        "        self.room, self.capacity = room, capacity\n",
        "        self.room, self.capacity = len(self._tokens), capacity\n",
        (FIXED, "-k", "no_bit"),
    ),
)  # fmt: skip

if __name__ == "__main__":
    main(FAULTS_ON_GPUS)
