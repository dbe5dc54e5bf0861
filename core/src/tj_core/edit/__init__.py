"""Edits of traces: substitution, inlining, re-expansion, tag propagation."""
