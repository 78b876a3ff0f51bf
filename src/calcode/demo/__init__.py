"""The demonstration on real skin images."""
