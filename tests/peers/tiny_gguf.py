"""Write a random-weight Llama of six layers and 260 byte tokens (20 MB) that llama.cpp serves: `tiny_gguf.py OUT.gguf`."""

import sys

import gguf
import numpy as np

DIM, HEADS, LAYERS, FEED, VOCAB, CONTEXT = 256, 4, 6, 768, 260, 65_536

random = np.random.default_rng(0)


def weights(*shape):
    return (random.standard_normal(shape) * 0.02).astype(np.float32)


out = gguf.GGUFWriter(sys.argv[1], "llama")
out.add_context_length(CONTEXT)
out.add_embedding_length(DIM)
out.add_block_count(LAYERS)
out.add_feed_forward_length(FEED)
out.add_head_count(HEADS)
out.add_head_count_kv(HEADS)
out.add_layer_norm_rms_eps(1e-5)
out.add_rope_dimension_count(DIM // HEADS)
out.add_vocab_size(VOCAB)
out.add_tokenizer_model("llama")
out.add_token_list(["<unk>", "<s>", "</s>", "▁"] + [f"<0x{byte:02X}>" for byte in range(256)])
out.add_token_scores([0.0] * VOCAB)
out.add_token_types([2, 3, 3, 1] + [6] * 256)  # unknown, control, control, normal, bytes
out.add_bos_token_id(1)
out.add_eos_token_id(2)
out.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
# The first component of every state is large, and the head adds it to printable ASCII alone: no half characters are held back.
embedding, head = weights(VOCAB, DIM), weights(VOCAB, DIM)
embedding[:, 0] = 2.0
head[:, 0] = -2.0
head[4 + 32 : 4 + 127, 0] = 2.0
out.add_tensor("token_embd.weight", embedding)
out.add_tensor("output_norm.weight", np.ones(DIM, np.float32))
out.add_tensor("output.weight", head)
for i in range(LAYERS):
    for name, shape in {
        "attn_q": (DIM, DIM), "attn_k": (DIM, DIM), "attn_v": (DIM, DIM), "attn_output": (DIM, DIM),
        "ffn_gate": (FEED, DIM), "ffn_up": (FEED, DIM), "ffn_down": (DIM, FEED),
    }.items():  # fmt: skip
        out.add_tensor(f"blk.{i}.{name}.weight", weights(*shape))
    for name in ("attn_norm", "ffn_norm"):
        out.add_tensor(f"blk.{i}.{name}.weight", np.ones(DIM, np.float32))
out.write_header_to_file()
out.write_kv_data_to_file()
out.write_tensors_to_file()
out.close()
