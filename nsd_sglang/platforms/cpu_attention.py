"""Attention over SGLang's paged key-value pool in torch, for prefill, decoding and the three passes of speculation.

Every pass has one form: the rows of a request see its prefix (all of it) and its own slots (those a mask names). Which
slots those are is worked out once per forward pass, in `init_forward_metadata`; a layer then gathers and multiplies.
"""

from __future__ import annotations

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.attention.verify_mask import VerifyMask
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode
from torch.nn.functional import scaled_dot_product_attention


class Pass:
    """What one group of requests with the same number of rows attends to.

    Args:
        rows: which query rows of the forward pass the group has: B * Q of them, request by request.
        prefix_slots: [B, P] slots of the prefix, padded.
        prefix_lens: [B].
        own_slots: [B, W] slots of the rows themselves, already written when a layer attends.
        own_visible: bool, broadcastable to [B, Q, W].
    """

    def __init__(self, rows: slice, prefix_slots, prefix_lens, own_slots, own_visible) -> None:
        batch, own = own_slots.shape
        queries = (rows.stop - rows.start) // batch
        self.rows, self.batch, self.queries = rows, batch, queries
        self.length = prefix_slots.shape[1] + own
        self.slots = torch.cat((prefix_slots, own_slots.to(prefix_slots.dtype)), dim=1).flatten()
        visible = torch.empty(batch, queries, self.length, dtype=torch.bool)
        visible[:, :, : -own or None] = (torch.arange(prefix_slots.shape[1]) < prefix_lens[:, None])[:, None]
        visible[:, :, self.length - own :] = own_visible
        self._visible = None if visible.all() else visible
        self._bias: dict = {}

    def bias(self, group: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive mask [B, 1, Q * group, P + W] for `group` query heads per key head; None when everything is seen."""
        if self._visible is None:
            return None
        if (group, dtype) not in self._bias:
            hidden = torch.zeros(self._visible.shape, dtype=dtype).masked_fill_(~self._visible, float("-inf"))
            self._bias[group, dtype] = hidden.repeat_interleave(group, dim=1)[:, None]
        return self._bias[group, dtype]


class CpuAttention(TorchNativeAttnBackend):
    """The `torch_native` backend of this platform.

    Sliding windows, cross attention and encoders are left to SGLang's class, which serves them without speculation.
    """

    def __init__(self, runner) -> None:
        super().__init__(runner)
        self.max_context_len = runner.model_config.context_len
        self.passes: list[Pass] = []

    @property
    def verify_mask(self) -> VerifyMask:
        """Asks for tree masks of the drafted rows only. max_bs 0: SGLang allocates one for every batch."""
        return VerifyMask(buffer=torch.empty(0, dtype=torch.bool), mode=TreeMaskMode.QLEN_ONLY, max_bs=0)

    def update_verify_buffers_to_fill_after_draft(self, spec_info, cuda_graph_bs) -> None:
        """Nothing to redo: there is no second stream in which the plan could have run ahead of the draft."""

    def init_forward_metadata(self, forward_batch) -> None:
        super().init_forward_metadata(forward_batch)
        mode, batch = forward_batch.forward_mode, forward_batch.batch_size
        self.passes = []
        if mode.is_idle() or batch == 0:
            return
        seq_lens, own = forward_batch.seq_lens, forward_batch.out_cache_loc
        if mode.is_target_verify():
            n = forward_batch.spec_info.draft_token_num
            visible = forward_batch.spec_info.custom_mask[: batch * n * n].view(batch, n, n)
            self.passes = [self.one_pass(forward_batch, seq_lens, own, visible)]
        elif mode.is_decode():
            self.passes = [self.one_pass(forward_batch, seq_lens - 1, own, torch.tensor(True))]
        else:
            self.passes = self._extend_passes(forward_batch)

    def one_pass(self, forward_batch, prefix_lens, own_slots, own_visible, queries: int | None = None) -> Pass:
        """A pass in which every request of the batch has as many rows as the others, and as many own slots."""
        batch = forward_batch.batch_size
        own_slots = own_slots.view(batch, -1)
        queries = own_slots.shape[1] if queries is None else queries
        slots = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices, : int(prefix_lens.max())]
        return Pass(slice(0, batch * queries), slots, prefix_lens, own_slots, own_visible)

    def _extend_passes(self, forward_batch) -> list[Pass]:
        prefix_lens, lens = forward_batch.extend_prefix_lens, forward_batch.extend_seq_lens.tolist()
        if len(set(lens)) == 1 and lens[0] <= _FEW_ROWS:
            causal = torch.ones(lens[0], lens[0], dtype=torch.bool).tril_()
            return [self.one_pass(forward_batch, prefix_lens, forward_batch.out_cache_loc, causal)]
        passes, start = [], 0
        for i, (prefix_len, num) in enumerate(zip(prefix_lens.tolist(), lens)):
            rows = slice(start, start + num)
            own = forward_batch.out_cache_loc[rows][None]
            slots = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices[i], :prefix_len][None]
            causal = torch.ones(num, num, dtype=torch.bool).tril_()
            if num:
                passes.append(Pass(rows, slots, prefix_lens[i : i + 1], own, causal))
            start += num
        return passes

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        if self._is_plain(layer, forward_batch):
            return self._forward(q, k, v, layer, forward_batch, save_kv_cache)
        return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        if self._is_plain(layer, forward_batch):
            return self._forward(q, k, v, layer, forward_batch, save_kv_cache)
        return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)

    def _is_plain(self, layer, forward_batch) -> bool:
        window = layer.sliding_window_size
        windowed = self.use_sliding_window_kv_pool or (window is not None and window > -1)
        plain = not (windowed or layer.is_cross_attention or layer.attn_type == AttentionType.ENCODER_ONLY)
        if not plain and forward_batch.spec_info is not None:
            raise NotImplementedError("The CPU platform speculates with plain causal attention layers only")
        return plain

    def _forward(self, q, k, v, layer, forward_batch, save_kv_cache) -> torch.Tensor:
        if layer.logit_cap:
            raise NotImplementedError("The CPU platform has no capped attention logits")
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        outputs = [attend(q[p.rows], keys, values, p, layer.scaling) for p in self.passes]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if output.shape[0] < q.shape[0]:
            # Padding rows of an attention-parallel batch.
            output = torch.cat((output, output.new_zeros(q.shape[0] - output.shape[0], output.shape[1])))
        return output


# Above this many rows per request, padding them to one shape costs more than a loop over the requests.
_FEW_ROWS = 64


def attend(q, keys, values, p: Pass, scaling: float) -> torch.Tensor:
    """Attention of one pass in one layer.

    The query heads that share a key head become rows of that head, so that keys and values are used as they lie.

    Args:
        q: [B * Q, H, D].
        keys: [slots, KV, D]; values: [slots, KV, E]; H is a multiple of KV.

    Returns:
        [B * Q, H * E]
    """
    kv_heads, group = keys.shape[1], q.shape[1] // keys.shape[1]
    shape = (p.batch, p.queries, kv_heads, group)
    k = keys.index_select(0, p.slots).view(p.batch, p.length, kv_heads, -1).transpose(1, 2)
    v = values.index_select(0, p.slots).view(p.batch, p.length, kv_heads, -1).transpose(1, 2)
    if k.dtype != q.dtype:
        k, v = k.to(q.dtype), v.to(q.dtype)
    grouped = q.view(*shape, -1).permute(0, 2, 1, 3, 4).reshape(p.batch, kv_heads, p.queries * group, -1)
    out = scaled_dot_product_attention(grouped, k, v, attn_mask=p.bias(group, q.dtype), scale=scaling)
    out = out.view(p.batch, kv_heads, p.queries, group, -1).permute(0, 2, 1, 3, 4)
    return out.reshape(p.batch * p.queries, -1)
