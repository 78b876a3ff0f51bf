"""The decision service of a hospital: decisions over HTTP, each on disk before it is answered (SERVICE.md).

The service translates, stores and displays. Statistics are in `calcode.site` and `calcode.monitor`; all hashing of the
log is in `calcode.service.audit`.
"""
