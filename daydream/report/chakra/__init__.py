"""Chakra execution traces: what was simulated, for network simulators such as ASTRA-sim.

One file a rank, in the protobuf schema of MLCommons (`chakra/schema/protobuf/et_def.proto`, package
`ChakraProtoMsg`): each message has its length before it, the first is `GlobalMetadata`, the others are
`Node`s. The schema knows one kind of cause, "after the end of", and whole microseconds; what it has no
field for stands in attributes, so that the exact graph can be read back.
"""
