"""What published packages do differently from the recommended split rule, one file per package.

These functions exist for parity tests and for the docs. They take plain arrays, and no method of the
registry uses them: a method that follows a published convention is not the method we compare with.
"""
