"""The schedule of collectives: places of starts and waits, buckets, fences, estimated times."""
