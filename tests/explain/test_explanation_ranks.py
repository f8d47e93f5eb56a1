"""What a step waits for on other ranks, told for two ranks that are small enough to follow by hand."""

from graph.jobs import job

import daydream


def waits_for_the_other_rank(graph):
    """Let rank 1's all-reduce take 60, and rank 0's next kernel wait for it."""
    transfers = graph.select(kind="collective").where(lambda tasks: tasks.row >= 0)
    other = transfers.where(lambda tasks: tasks.rank == 1)
    other.scale(3)
    kernels = graph.select(name="^k$").where(lambda tasks: tasks.rank == 0)
    graph.link(other.ids[:-1], kernels.ids[1:])


def test_communication_counts_collectives_of_other_ranks_that_the_step_waits_for():
    #  rank 0  |k 50|1|reduce 20|          |1|k 50|1|...       a step of 50 + 1 + 60 + 1
    #  rank 1  |k 50|1|reduce 60           |1|k 50|1|...
    explanation = daydream.explain(daydream.replay(job(5, cpu=(10, 10))), waits_for_the_other_rank)
    communication = explanation.communication

    assert explanation.step_ns == 112_000
    # Rank 0's steps end with its own 20, and 40 more of rank 1's pass before the next kernel.
    assert (communication.total_ns, communication.exposed_ns, communication.hidden_ns) == (60_000, 60_000, 0)
