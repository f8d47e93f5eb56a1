"""Train the GPT of benchmarks/small_models.py, attention written out, for `own_changes.py`.

python validation/own_changes/train.py --layers 6 --steps 150
"""

import argparse
import sys
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from small_models import GPT, WORDS

BATCH, CONTEXT, WIDTH = 8, 32, 192

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--steps", type=int, default=150)
options = parser.parse_args()
torch.manual_seed(0)
model = GPT(options.layers, WIDTH, 4, CONTEXT)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens, following = torch.randint(WORDS, (BATCH, CONTEXT)), torch.randint(WORDS, (BATCH * CONTEXT,))
for _ in range(options.steps):
    optimizer.zero_grad()
    functional.cross_entropy(model(tokens).flatten(0, 1), following).backward()
    optimizer.step()
