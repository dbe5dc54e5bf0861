"""Traces as Python text: printer, spelling, parser."""
