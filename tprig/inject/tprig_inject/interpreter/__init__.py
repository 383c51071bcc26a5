"""Makes the kernels of Model Runner V2 run, and run fast, in Triton's interpreter."""

from __future__ import annotations

from tprig_inject.interpreter import missing, needless


def supply() -> None:
    """Make the kernels of Model Runner V2 run in Triton's interpreter.

    * `_topk_topp_kernel` casts a Python int from `range`, which the interpreter does not wrap:
      vLLM's own PyTorch path takes over where it thinks that Triton is absent.
    * The interpreter loads and stores through masks of any integer type and then indexes with
      them: masks are cast to bool.
    * `libdevice.log1p` has no interpreted form: numpy's is supplied.

    And what it does needlessly is left out, which makes a step several times faster and changes
    no result: see `needless` and `shortcuts`.
    """
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False
    missing.cast_masks_to_bool()
    missing.supply_log1p()
    needless.leave_out()
