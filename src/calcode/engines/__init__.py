"""Engines that compute decisions: on this machine, on its GPU, on a cluster."""
