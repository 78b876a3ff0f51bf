from calcode.files import replacing

__all__ = ["replacing"]
