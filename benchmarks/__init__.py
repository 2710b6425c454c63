"""Benchmarks of icesize beside its peers, on the same rows and in the same run; never part of the tests."""
