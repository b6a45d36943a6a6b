"""What a rank does next, without I/O: feed `RankEngine.step` an event, carry out the actions that it returns."""
