"""Times on a device: its peaks, what is reached of them, and durations after a change of type or device."""
