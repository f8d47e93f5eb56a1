"""Record a training program of examples/ with its memory: from its first line on, or three steps of it.

python record_training.py FOLDER MODEL whole|part: writes MODEL.parquet, with the metadata that `collect`
writes where it is a part.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

import daydream
from examples.train_cnn import network
from examples.train_gpt import GPT

STEPS, FIRST = 6, 3  # of them, and the first that is recorded in part


def tokens():
    text = torch.randint(512, (8, 65))
    return text[:, :-1], text[:, 1:].flatten()


def images():
    return torch.randn(16, 3, 32, 32), torch.randint(10, (16,))


def main(folder, model, how):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True)
    if how == "whole":
        profiler.start()
    net = network(10) if model == "cnn" else GPT(512, 128, 4, 4, 64)
    data = images if model == "cnn" else tokens
    options = {"fused": {"fused": True}, "foreach": {"foreach": True}}.get(model, {"foreach": False})
    optimizer = torch.optim.AdamW(net.parameters(), **options)
    for step in range(STEPS):
        if how == "part" and step == FIRST:
            profiler.start()
        with record_function(f"ProfilerStep#{step}"):
            inputs, labels = data()
            scores = net(inputs)
            loss = functional.cross_entropy(scores.flatten(0, -2), labels)
            optimizer.zero_grad(set_to_none=model != "zeros")
            loss.backward()
            optimizer.step()
    profiler.stop()
    path = Path(folder) / f"{model}.json"
    profiler.export_chrome_trace(str(path))
    trace = daydream.load(path)
    if how == "part":
        trace.metadata |= described(net, optimizer)
    trace.save(path.with_suffix(".parquet"), force=True)


def described(net, optimizer):
    parameters = [
        {"name": name, "layer": name.rpartition(".")[0], "shape": list(each.shape), "dtype": "float32",
         "device": "cpu", "requires_grad": True, "gradient_bytes": 4 * each.numel()}
        for name, each in net.named_parameters()
    ]  # fmt: skip
    kept = [value for state in optimizer.state.values() for value in state.values()]
    elements = sum(each.numel() for each in net.parameters())
    group = {
        "settings": {}, "tensors": len(parameters), "elements": elements,
        "parameters": [each["name"] for each in parameters],
    }  # fmt: skip
    state = sum(value.numel() * value.element_size() for value in kept)
    buffers = [
        {"name": name, "layer": name.rpartition(".")[0], "device": "cpu",
         "bytes": each.numel() * each.element_size()}
        for name, each in net.named_buffers()
    ]  # fmt: skip
    adam = {"name": "AdamW", "state_bytes": state, "groups": [group]}
    return {"parameters": parameters, "buffers": buffers, "optimizers": [adam]}


if __name__ == "__main__":
    main(*sys.argv[1:])
