"""From an acquired trace to a program: stages, pipeline, code generation."""
