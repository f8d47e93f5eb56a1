"""What model a trace is of: blocks, attention, parameters, gradients, optimizers, compiled code."""
