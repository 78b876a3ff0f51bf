"""The whole evaluation from one file: settings, methods and experiments as data."""
