"""One experiment per file, with the schemas of its tables; `calcode.study.registry` lists them."""
