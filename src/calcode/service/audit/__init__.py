"""The cryptography of the log: the chain of records, the RFC 6962 tree, signed checkpoints, deletable parts."""
