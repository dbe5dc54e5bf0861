"""Facts about traces: aliases and storage, liveness. Nothing is changed."""
