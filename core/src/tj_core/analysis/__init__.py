"""Facts about traces: aliases and storage, liveness. Analyses change nothing."""
