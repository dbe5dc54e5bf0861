"""The kit by which the author of an executor proves it right: ``tj conformance executor NAME``."""
