"""Higher-order operations: their operand graphs become subprograms."""
