"""Products of a loop's steps that have an operand or a sum in common, as one product."""
