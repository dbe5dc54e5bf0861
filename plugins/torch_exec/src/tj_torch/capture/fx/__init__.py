"""FX graphs and exported programs."""
