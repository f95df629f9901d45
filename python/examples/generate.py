"""Continue a text: generate.py MODEL TOKENS TEXT. SPDX-License-Identifier: Apache-2.0"""
import sys

import kt

model, most, text = sys.argv[1], int(sys.argv[2]), sys.argv[3]
engine = kt.Engine(model, deterministic=True)
prompt = engine.tokenizer.encode(text)
sequence = engine.sequence(len(prompt) + most)
sampler = kt.Sampler(engine.vocab)
answer, tokens = [], prompt
while len(answer) < most:
    [logits] = engine.step([(sequence, tokens)])
    token = sampler.next(logits)
    if token in engine.eos:
        break
    answer.append(token)
    tokens = [token]
print(engine.tokenizer.decode(answer))
