"""CALCoDe around any scikit-learn classifier: a thin edge, no rule of the method lives here."""

from __future__ import annotations

from calcode.sklearn.classifier import CalcodeClassifier

__all__ = ["CalcodeClassifier"]
