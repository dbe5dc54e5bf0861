"""tj-cudagraph: segments of compiled programs that are captured as CUDA graphs and replayed."""
