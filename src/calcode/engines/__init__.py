"""Where decisions are computed: on this machine, on its GPU, on a cluster."""
