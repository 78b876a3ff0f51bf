"""The decision service of a hospital: decisions over HTTP, each on the disk before it is answered (SERVICE.md).

The service translates, stores and shows. Statistics live in `calcode.site` and `calcode.monitor`; every hash of the log
lives in `calcode.service.audit`.
"""
