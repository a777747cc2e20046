"""Options of LMDeploy's configurations that seesay does not have, with the values that describe its behavior.

These values are accepted, so that code written for LMDeploy runs. Any other value is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PYTORCH_ENGINE: Mapping[str, Sequence[object]] = {
    # one process, one device
    "dp": (1,),
    "dp_rank": (0,),
    "ep": (1,),
    "attn_tp_size": (None, 1),
    "mlp_tp_size": (None, 1),
    "moe_tp_size": (None, 1),
    "enable_mp_engine": (False,),
    "mp_engine_backend": ("mp",),
    "enable_microbatch": (False,),
    "enable_eplb": (False,),
    "role": ("Hybrid",),
    "migration_backend": ("DLSlime",),
    "enable_transfer_obj_ref": (False,),
    # weights of the checkpoint, read at start
    "empty_init": (False,),
    "enable_metrics": (True,),
    "logprobs_mode": (None,),
    "enable_return_routed_experts": (False,),
    # no diffusion models
    "dllm_block_length": (None,),
    "dllm_unmasking_strategy": ("low_confidence_dynamic",),
    "dllm_denoising_steps": (None,),
    "dllm_confidence_threshold": (0.85,),
}

TURBOMIND_ENGINE: Mapping[str, Sequence[object]] = {
    "async": (1, True),
    "async_": (1, True),
    "devices": (None,),
    "empty_init": (False,),
    "enable_metrics": (True,),
}

VISION: Mapping[str, Sequence[object]] = {"thread_safe": (False, True)}

GENERATION: Mapping[str, Sequence[object]] = {
    "with_cache": (False,),
    "preserve_cache": (False,),
    "migration_request": (None,),
    "return_routed_experts": (False,),
}
