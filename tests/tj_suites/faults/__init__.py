"""Ranks that are killed at a moment of a step: the others end, and the job goes on from there."""
