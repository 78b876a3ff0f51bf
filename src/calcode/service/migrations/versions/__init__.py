"""One file per version of the schema; a released one is never changed."""
