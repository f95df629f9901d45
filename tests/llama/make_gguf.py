# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file of Qwen3-30B-A3B's shape with random blocks, for engines to be timed on the same file.

    make_gguf.py FILE MIX [--layers N] [--seed N]

MIX names the block types that llama-quantize gives the roles: q4_0, q4_k_m, q8_0, iq4_xs, iq2_xxs. Codes are random bits;
scales are such that weights deviate by about 0.02. The vocabulary has the published size and strings of no meaning."""

import argparse

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, GGUFWriter, TokenType

HIDDEN, INNER, EXPERTS, CHOSEN, HEADS, KV_HEADS, HEAD, VOCAB = 2048, 768, 128, 8, 32, 4, 128, 151936

# Where in a block its f16 scales lie, and what the largest code times the other scales about is.
SCALES = {T.Q4_0: ((0,), 4.6), T.Q8_0: ((0,), 74), T.Q4_K: ((0, 2), 150), T.Q5_K: ((0, 2), 300), T.Q6_K: ((208,), 1400),
          T.Q2_K: ((80, 82), 15), T.IQ4_XS: ((0,), 1300), T.IQ2_XXS: ((0,), 50)}

# gate and up; down, a layer of every two; query, key and output; value; embedding; head
MIXES = {"q4_0": (T.Q4_0, (T.Q4_0, T.Q4_0), T.Q4_0, T.Q4_0, T.Q4_0, T.Q6_K),
         "q4_k_m": (T.Q4_K, (T.Q6_K, T.Q4_K), T.Q4_K, T.Q6_K, T.Q4_K, T.Q6_K),
         "q8_0": (T.Q8_0, (T.Q8_0, T.Q8_0), T.Q8_0, T.Q8_0, T.Q8_0, T.Q8_0),
         "iq4_xs": (T.IQ4_XS, (T.IQ4_XS, T.IQ4_XS), T.IQ4_XS, T.Q5_K, T.IQ4_XS, T.Q6_K),
         "iq2_xxs": (T.IQ2_XXS, (T.IQ2_XXS, T.Q2_K), T.IQ2_XXS, T.Q4_K, T.Q2_K, T.Q5_K)}


def blocks(rng, kind, *shape):
    size, width = GGML_QUANT_SIZES[kind]
    out = rng.integers(0, 256, (*shape[:-1], shape[-1] // size, width), dtype=np.uint8)
    places, spread = SCALES[kind]
    for at in places:
        d = (rng.uniform(0.5, 1.5, out.shape[:-1]) * 0.02 / spread).astype(np.float16)
        out[..., at:at + 2] = d[..., None].view(np.uint8)
    return out.reshape(*shape[:-1], -1)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("file")
    p.add_argument("mix", choices=MIXES)
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rng = np.random.default_rng(a.seed)
    w = GGUFWriter(a.file, "qwen3moe", use_temp_file=True)
    w.add_block_count(a.layers)
    w.add_context_length(40960)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(6144)
    w.add_expert_feed_forward_length(INNER)
    w.add_expert_count(EXPERTS)
    w.add_expert_used_count(CHOSEN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD)
    w.add_value_length(HEAD)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e6)
    w.add_vocab_size(VOCAB)
    letters = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    letters += [chr(256 + n) for n in range(256 - len(letters))]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(letters + [f"!{n}" for n in range(VOCAB - 258)] + ["<|im_end|>", "<|endoftext|>"])
    w.add_token_types([TokenType.NORMAL] * (VOCAB - 2) + [TokenType.CONTROL] * 2)
    w.add_token_merges(["! 1", "! 2"])
    w.add_eos_token_id(VOCAB - 2)
    w.add_pad_token_id(VOCAB - 1)
    w.add_add_bos_token(False)

    gate, down, attn, value, embedding, head = MIXES[a.mix]

    def put(name, kind, *shape):
        w.add_tensor(name, blocks(rng, kind, *shape), raw_dtype=kind)

    put("token_embd.weight", embedding, VOCAB, HIDDEN)
    for layer in range(a.layers):
        b = f"blk.{layer}."
        for name, n in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_q_norm", HEAD), ("attn_k_norm", HEAD)):
            w.add_tensor(f"{b}{name}.weight", np.ones(n, np.float32))
        put(b + "attn_q.weight", attn, HEADS * HEAD, HIDDEN)
        put(b + "attn_k.weight", attn, KV_HEADS * HEAD, HIDDEN)
        put(b + "attn_v.weight", value, KV_HEADS * HEAD, HIDDEN)
        put(b + "attn_output.weight", attn, HIDDEN, HEADS * HEAD)
        w.add_tensor(b + "ffn_gate_inp.weight", rng.normal(0, 0.02, (EXPERTS, HIDDEN)).astype(np.float32))
        put(b + "ffn_gate_exps.weight", gate, EXPERTS, INNER, HIDDEN)
        put(b + "ffn_up_exps.weight", gate, EXPERTS, INNER, HIDDEN)
        put(b + "ffn_down_exps.weight", down[layer % 2], EXPERTS, HIDDEN, INNER)
    w.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    put("output.weight", head, VOCAB, HIDDEN)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
