"""What the page of memory says around its tables."""

from __future__ import annotations

BEGIN, END = "<!-- begin: memory -->", "<!-- end: memory -->"
JUDGEMENT, DEVELOPMENT = "Rows that judge", "Rows for development"

INTRODUCTION = """Eight small models (`validation/memory_models.py`) train on one CPU thread: residual convolutions, torch's encoder
layers, a GPT, an LSTM, linear layers, a GRU, an MLP-mixer, a small U-Net. Each change is made for real in a process of its own, by the `apply` of the
optimization's file or by the model's own arguments. The truth is the most bytes that are held in a steady step by
torch's own records, from before the model was made, read by a few lines that are not daydream's. A
prediction knows one trace of the unchanged step. Errors are of the predicted peak; a refusal counts as a miss of 100 %.
"""

SPLIT = """Development and judgement: CNN, Encoder, GPT, LSTM and MLP are for development, since causes of misses were mended in all five of
them (GPT, LSTM and MLP judged at first). GRU, Mixer and UNet judge: they were chosen and measured when these mends were done, and predicted then;
nothing was changed for what came out. The 2 % of the peak that every range holds besides were taken from the first predictions of the other five.
The range of the MoE at other lengths was widened for a cause found in those rows (features have the size of the length, too), so its ranges
judge no longer.
"""

FIRST = """What was predicted at first of the five, before daydream was changed for any cause found here (median, 90th percentile, worst):
CNN and Encoder 0.0 %, 1.3 %, -7.3 % (Encoder, autocast); GPT, LSTM and MLP 0.0 %, 2.1 %, +95.5 % (LSTM, checkpointing); two ranks 0.4 %, 2.4 %, -2.5 %
(Encoder, `fully_shard`) and 0.2 %, 6.9 %, +8.9 % (GPT, `fully_shard`); public pairs 0.0 %, 18.2 %, +36.1 % (particles, 128 to 8) and 21.8 %, 38.3 %,
+38.3 % (MoE to length 1024).
"""

OF_RANKS = """Two processes over gloo, each with the batch of the one that was recorded. Measured: the median over the steps of both
ranks, counted below torch; where steps differ, the least and the most in brackets. A gathered unit is let go of by a thread of
gloo, before the next one is asked for or after: so peaks of `fully_shard` on a CPU differ from step to step.
"""

ON_GPUS = """Six models on an H200 and five on an H100 ([validation](../validation/README.md)): the most that torch's allocator had given out
at once. Changes that leave memory alone are left out. The H200 is for development: that the probabilities of an attention
that is written out are kept twice under autocast, and that a loss usually lies inside of it, was found there, and that factors of 32 bits
widen what is behind them in the H100's `convnext`. Before that, autocast was 5.9, 1.7, 11.9, 14.3, 9.7 and 2.2 % too small in the H200's
models, 12.6 % in `t5` and 8.4 % in `convnext`. What a range holds of 16 bits besides is 6 %, of the H200's rows. The H100's other models judge. There the unchanged step alone holds the workspaces
of libraries, up to 70 MB, that all variants of the process share; on the H200 what was run behind the CUDA graph holds 66 MB of
its second stream, which is most of `gpt_small`'s misses.
"""

OF_GPUS = """Public recordings of other people's programs, before and after a change; measured is the largest `Total Allocated` that
each recorded. Of `t4_mlp_amp`, `a100_switch_moe` and `hopper_tf32` the roles are those of [accuracy](accuracy.md). Both sides of the
particle transformer were known when its times were modelled, so it is no blind test.
"""
