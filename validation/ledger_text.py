"""What the page says about the ledger's figures: what falls short, what a range is, what was fitted."""

FALLS_SHORT = """
### What falls short, and why

- **Where freed memory goes** was most of what fell short before: glibc hands it back to the system or keeps it, by what the
  process did before, and page faults are up to a fifth of a step of these models. Traces were of one state and measured
  steps of the other: most steps of the links' recordings took 4 % to 8 % longer when they were traced than in the blocks. In
  these recordings malloc is told to keep it (benchmarks/recordings.py). Nothing was fitted again, and of the rules for these
  rows only that of checkpointing had changed: of the CPU rows the 90th percentile was 7.5 %, now 4.8 %, the worst +10.6 % (GPT-64,
  layers 4 to 2), now +8.0 %; of DDP the median was 2.3 % on two models, now 1.3 % on three, the MLP among them, whose
  unchanged step never held still before. A process of your own may be in either state.
- **GPT-64** has a step of 5 ms, 3,000 operators of a few us; its unchanged step took 5.5 ms in one process and 4.7 in two. *Layers 4 to
  2* saves more than half of the layers' time, *4 to 8* costs more than as much again: parameters, gradients and moments of four layers
  are 3.4 MB, of two 1.7 MB, and a core's cache is 1 MB. A trace does not tell the size of caches, nor what an
  operator would take from another one.
- **Accumulation on the MLP**: another forward and backward pass takes 0.32 ms of a step of 0.7 ms, and
  0.27 are predicted. Not understood.
- **Checkpointing every block**: the 25 tensors that a block saves are counted right, and on perceptrons of 9 to 36 tensors
  the constants hold. What was missing is that Python is slower behind much data: GPT-64's blocks move 0.8 MB, GPT-256's
  23 MB. The rule for it is from perceptrons (benchmarks/checkpoint_calls.py); on the recordings before these it brought
  GPT-256 from -2.8 % to -1.8 %. In GPT-64 the fixed part of a call took 65 to 100 us where perceptrons of as much data
  take 50; why is not known.
- **The CNN over a link**: DistributedDataParallel broadcasts its 75 buffers in each step, which is not modelled. With
  `fully_shard` and streams at 0.5 GB/s, where transfers and compute take about as long, more is hidden than predicted.
- **`torch.compile` behind graph breaks**: MLP-breaks and MLP-128-breaks come out 17 and 11 % short. Compiled code around a break costs
  1.5 to 2 times as much on one host as on another of the same kind, and nothing in an uncompiled trace tells that. The optimizer behind
  it takes up to 23 % longer though nothing of it is compiled, as its caches are colder then; that is not modelled.
- **LSTM, batch x 2**: recurrent operators are 40 % of the step. Their overhead for each time step is what they take
  beyond the best rate of the trace's products, and the trace holds small ones only.
- **BERT and ViT, MI300X and H100**, kernel by kernel. Attention of 16 and of 96 blocks, which both GPUs give a unit each,
  takes 3.05 times as long on the MI300X in both models. Scaled with the peaks of whole GPUs it was predicted to take
  longer on the H100 instead: that was nearly all of an error of +49 % of BERT on the H100. Kernels of few blocks now
  go with the rates of the units that they run on. That explains 1.6 of the 3.05; the rest is other software (a compiled
  kernel there, a library's here). Single calls are closer now in all four pairs ([costs.md](costs.md)), sums of two are
  not, as errors made up for each other: BERT on the MI300X was +5.8 %, ViT on the H100 +6.9 %. What is left there: the
  fixed cost of a kernel on an MI300X, 4.4 us from another trace, is 2.1 us in BERT's (1.7 to 4.6 us in five traces);
  products of ViT on the H100, of 104 blocks for 132 units, take twice the predicted time.
  The rule was found with these pairs in view, so they are no blind test of it.
- **Particles**: batch and length change both, as events are padded to the longest of a batch. Products are predicted to take
  1.8 times as long as they do, as the library picks larger tiles for them. The way back comes out
  10 % short: the model has heads and features of 128, too, which are told from tokens by where they stand. [costs.md](costs.md) has single kernels, both ways.
- **Loader workers**: what the change assumes holds, loading and fetching are hidden in the recording after it. Its steps are
  longer as calls of the backward thread take 39.7 ms where they took 34.6 (those of the forward pass 42.3 and 42.7), and
  copies from a worker's pageable memory 2.9 ms and not 1.7. One recording each does not tell whether workers compete with
  the backward thread or two processes differ, so the range has no part for it and is too narrow here.
- On GPUs the ledger has one own device, the H200 (validation/README.md says how to add another).
"""

RANGES = """Every prediction prints the range that should hold in nine cases of ten. Its half-width is the root of the sum of four
squares (daydream/predict/interval.py): how well the median of the recorded steps is known; the replay error; the
models' part; and what has no known cause (delays, device work that was not recorded), at most as much as the
change moves; where waits are doubtful it covers both readings. For the models' part the change is simulated once more with all
time that it touches longer by the error of its sort, so that what stays hidden does not count. A change of nothing
has the first two only.

The errors are of touched time: *moved* is removed, or CPU time multiplied by a factor; *copied* is recorded work that
is done again; *computed* is CPU time that a cost model gave; of *kernels* and *transfers* it is what a model gave and
what a factor changes. The first three mix in the pairs of a CPU: of all errors that hold 90 % of them those with the
narrowest ranges are taken. The other two are the 90 % quantile of what their pairs need. Each row below is fitted
without the model that it judges. `scale` asks for a factor that nobody predicted; its range is the same. Kernels keep 20 %,
although their pairs need 16 % since a rule was found on them. The others are those of earlier recordings, in processes that
handed freed memory back at times, as a user's does: the pairs on this page need less.
"""

FITTED = """
## Which numbers were fitted, and on what

No number in daydream is fitted to the pair it is judged by, with the exceptions named here.

| number | from | judged by |
|---|---|---|
| errors of the range (daydream/predict/graph_diff.py) | all pairs of this page | above: without the model that is judged |
| what another run adds to a range (`ANOTHER_RUN`, daydream/predict/interval.py) | kernels that the changes of the ViT and of the U-Net pairs leave alone; launches of the A10's lengths 128 and 256 | no pair is blind: intervals are told with and without it |
| what hidden CPU time adds to a range (`HIDDEN_CPU`) | CPU times of five recordings of one program on the H200's host | no pair is blind: it was added as the H200's pairs missed |
| typical cost of a profiler's events (daydream/collect/live/recording_cost.py) | four measurements by `collect` beside `train_gpt` on the H200's host | the H200's other models, developed with: that it is needed was seen on them |
| what 16 bits give (daydream/model/half_times.py, type_flow.py) | ViT `dali` to `dali_amp_bf16`, T4 `fp32` to `amp`, published rates | the ViT's other card, later pairs |
| lengths and growth read off grids (daydream/costs/device/launch_grids.py) | the A10's lengths 128 and 256, the MoE's batches 4 and 8 | the other lengths |
| overhead of CPU operators, rates, bandwidth | the trace that a prediction starts from | every pair |
| slowest element-wise functions 8 GB/s, three moves of a packed operand (daydream/costs/device/call_scaling.py) | single operators in a loop; that they are needed at all was seen on GPT-64's batch pairs | the other models' batch pairs are no part of it, GPT-64's are no blind test |
| autograd's walks (optimizations `add-layers`, `remove-layers`) | the trace's own gaps, by numbers of nodes; the rule was found on GPT-64's layer pairs | GPT-256's layer pairs |
| Python of a fused optimizer's step (daydream/model/optimizers.py) | steps of 4 to 200 small tensors | every fused pair |
| Python of a checkpointed call (optimizations `checkpointing`) | training steps of perceptrons; that it grows with a block's data was found when the GPTs' pairs missed | the GPTs' checkpointing pairs |
| compiled calls (daydream/model/compiled_calls.py) | 1 to 40 modules of 8 elements, products of 8 x 8 | every compile pair |
| cost of a profiler's events in traces of `collect` up to November 2026 (benchmarks/event_costs.py) | small programs, measured when a trace was recorded | every CPU pair |
| peaks of GPUs, parts of them that benchmarks sustain (daydream/costs/devices.py) | published figures | cross-device pairs |
| blocks, threads and registers of a GPU's unit, bytes a thread moves without a loop (daydream/costs/device/roofline.py) | published tables, CUTLASS, torch's kernels | the particles' pair; the rules were written with it in view, so it is no blind test |
| nothing: kernels of few blocks have the rates of their units (daydream/costs/device/roofline.py) | units and peaks of the table of GPUs | the pairs of BERT and ViT; the rule was found on them, so they are no blind test |
| what matrix units keep of a kernel's share of the peak (daydream/costs/device/roofline.py) | products of `h100_qwen_0.5b_inference`, one side of a pair | the other two models; Qwen's pair is no blind test |
| 1,022 launches in a queue, launch latencies where a trace shows none | public traces | replays; no pair depends on it |

The emulated links of `ddp_link` and `fsdp_link` have the bandwidth that the prediction is told: nothing is fitted there. The models were
written with the CPU and public pairs in sight, so rules were kept or dropped by how they did on all of them. The
H200's recordings were the first blind test. Predicted before anything was changed for them (commit d86a88f), their 58 rows missed by
6.9 % in the median, 68.9 % in the 90th percentile and 118.3 % at worst (resnet50, 16 bits), and the printed range held 35. Where 16 bits or
TF32 leave the device idle, the step is as long as the CPU lets it be, and a profiler with shapes and layers makes that longer. Since then
what recording typically costs is taken out where a trace does not say it, and hidden CPU time makes a range wider: the
rows above are with both, and are development data for them. What is left is a CPU that was slower when it was recorded than in other
runs: the heads of operators in `resnet50` are 2.5 to 4 times as long as usual, those of `gnmt` 1.8 to 3.5 times.

The H100's recordings judge: no rule and no range was made or changed with them, and the moves between the two GPUs were
asked about once. As they were recorded, ViT's autocast was predicted +109 % too long and its accumulation -16 % too short: `collect` took waits
that this torch records for work of the GPU, and left the last step's update without its phase. Both are mended, in `collect` and in these files
(the same in the H200's `train_gpt`, whose rows changed by up to 1.7 %), and the rows above were predicted then. Two more recordings,
`t5` and `mobilenet`, ran at another speed when they were recorded than when they were measured, by up to 40 %, and judge nothing.
"""
