"""The commented study file that `calcode study init` writes."""

from __future__ import annotations

EXAMPLE = """\
# A study: every method on every setting and backbone, and the experiments on top.
#
#     calcode study run study.toml
#
# Paths are relative to this file. A run that is interrupted goes on where it stopped; change something, and only
# what depends on it is computed again. On shifted settings every figure is an observation.

title = "My study"
output = "study-output"
seeds = [0]                      # of folds and randomised methods; the first serves every other experiment
experiments = ["all"]            # or names, such as ["main-comparison", "ablations"]
bootstrap_resamples = 1000       # of the paired bootstrap
projected_images = 1000          # drawn per cohort for the projection

# One entry per frozen model: a Parquet file with one row per image (id, embedding, label_name, role, group and any
# other column) and its prompts beside it.
[[backbones]]
name = "my-model"
title = "My model"               # in tables
features = "features.parquet"    # may hold environment variables: "$FEATURES/my-model.parquet"
# features = { HOME = "home.parquet", AWAY = "away.parquet" }    # or one file per setting
# prompts = "prompts.npz"        # looked for beside the features unless given
# optional = true                # left out, with a note, where the file is missing

# One entry per setting. `source` chooses the rows that hold the roles reference, validation, gate and calibration;
# `target` the rows that are decided on. A condition is a value, a list of values, or { not = ... }.
[[settings]]
name = "HOME"
title = "Held-out images of our own"
shifted = false                  # same distribution as the calibration images
target = { role = "test" }

[[settings]]
name = "AWAY"
title = "Another hospital"
shifted = true
source = { site = { not = "away" } }
target = { site = "away" }
# classes = ["mel", "nv"]        # restrict the label space; source rows of other classes are dropped
# out_of_space = ["scc"]         # diagnoses outside it that are looked at ("*": every other one)
# out_of_space_rows = "apart"    # "apart": the out-of-space experiment alone; "included": in the cohort itself
# min_images = 20                # target images a class needs to be called the worst

[methods]
run = ["all"]                    # names as in docs/baselines.md, "all", "paper" or "ablations"
comparators = ["aps", "mondrian", "lcp-vlm", "stacp", "localized-calibration"]    # of the paired bootstrap

# The first point serves every experiment; the main comparison is run at all of them.
[[operating_points]]
name = "fixed"
miscoverage = 0.05               # all methods
guard_miscoverage = 0.05         # CALCoDe's guard
deferral_level = 0.05            # CALCoDe's audit

# Cost regimes; without any the four of the method are used.
# [[costs]]
# name = "ours"
# error = 20.0
# set_size = 1.0
# deferral = 2.0

[sensitivities]                  # one setting at a time; leave out what you do not need
discovery_margin = [0.0, 0.02, 0.04, 0.05, 0.06, 0.08, 0.10]
guard_level = [0.90, 0.95]
deferral_level = [0.01, 0.02, 0.05, 0.10]
support_budget = [0.05, 0.10, 0.25, 0.50]
trim = [0, 1, 2]
n_neighbors = [5, 10, 20, 50]
n_folds = [3, 5, 10]
level = ["loo", "exact", "upper", "certified"]

[subgroups]
columns = ["site", "sex", "age"]    # columns of the features; those a file lacks are left out
methods = ["aps", "calcode"]

# [[motivating_cases]]
# setting = "AWAY"
# backbone = "my-model"
# comparator = "lcp-vlm"
# class = "mel"                  # the comparator's worst class unless given

[resplits]                       # new deals of the roles, by group and at the same sizes
n = 0                            # 20 show how far one split misleads
methods = ["aps", "mondrian", "localized-calibration", "calcode"]
"""
