"""Write a random Qwen2 checkpoint (0.43 M parameters, 0.9 MB) with a tokenizer of its own, for a real engine on a CPU: `tiny_model.py DIR`.

Needs torch, transformers and tokenizers: run it with the engine's Python.
"""

import os
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CHAT = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)
tokenizer = Tokenizer(models.BPE(unk_token=None))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
library = sorted(Path(os.__file__).parent.glob("*.py"))[:120]
special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=special, initial_alphabet=alphabet)
tokenizer.train_from_iterator([file.read_text(errors="ignore")[:20_000] for file in library], trainer)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<|endoftext|>", pad_token="<|endoftext|>", eos_token="<|im_end|>"
)
fast.chat_template, fast.model_max_length = CHAT, 4096
fast.save_pretrained(sys.argv[1])
torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=1024, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=64, max_position_embeddings=4096, bos_token_id=0, eos_token_id=2, pad_token_id=0,
    tie_word_embeddings=True,
)  # fmt: skip
Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
