"""The body of a record as canonical JSON (SERVICE.md 4); that of a decision, the one in a hurry, is written out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from typing import Any

from calcode.files import canonical_json

#: Fields of a decision's body besides those that every body has; `traceparent` and `due_at` may be added.
_DECISION_FIELDS = 26
_TRUTH = {False: "false", True: "true"}


def body_text(kind: str, body: Mapping[str, Any], *, id: str, boot: str, mono: str, subject: str) -> str:
    """The text that a record's hash covers: canonical JSON of the body and of the columns that the hash does not name.

    A decision's is the same text, made by one template: a general encoder takes five times as long.

    Examples
    --------
    >>> body_text("export", {"rows": 2}, id="i", boot="b", mono="1.5", subject="")
    '{"boot":"b","id":"i","mono":1.5,"rows":2,"subject":""}'
    """
    optional = 0 if kind != "decision" else ("traceparent" in body) + ("due_at" in body)
    if kind != "decision" or len(body) != _DECISION_FIELDS + optional:
        return canonical_json({**body, "id": id, "boot": boot, "mono": float(mono), "subject": subject})
    trace = f'"traceparent":{quoted(body["traceparent"])},' if "traceparent" in body else ""
    due = f'"due_at":{quoted(body["due_at"])},' if "due_at" in body else ""
    device, group, label, p_audit = body["device"], body["group"], body["label"], body["p_audit"]
    site, study, task, visit = body["site"], body["study"], body["task"], body["visit"]
    parts = ",".join([f'"{name}":"{digest}"' for name, digest in sorted(body["parts"].items())])
    return (
        f'{{"action":"{body["action"]}","boot":"{boot}","content":"{body["content"]}",'
        f'"device":{"null" if device is None else quoted(device)},"draw":{body["draw"]!r},{due}'
        f'"group":{"null" if group is None else quoted(group)},"id":"{id}",'
        f'"in_model":{_TRUTH[body["in_model"]]},"key":"{body["key"]}","known_group":{_TRUTH[body["known_group"]]},'
        f'"label":{"null" if label is None else quoted(label)},"line":{quoted(body["line"])},'
        f'"model":"{body["model"]}","mono":{mono},"p_audit":{"null" if p_audit is None else repr(p_audit)},'
        f'"p_sample":{body["p_sample"]!r},"p_second":{body["p_second"]!r},"parts":{{{parts}}},'
        f'"reason":"{body["reason"]}","representative":{_TRUTH[body["representative"]]},'
        f'"scores":{str(body["scores"]).replace(" ", "")},"set":{listed(tuple(body["set"]))},'
        f'"site":{"null" if site is None else quoted(site)},"study":{"null" if study is None else quoted(study)},'
        f'"subject":{quoted(subject)},"task":{"null" if task is None else quoted(task)},'
        f'"thresholds":{listed(tuple(body["thresholds"]))},{trace}"u":{body["u"]!r},'
        f'"u_second":{body["u_second"]!r},"visit":{"null" if visit is None else quoted(visit)}}}'
    )


@lru_cache(maxsize=4096)
def listed(values: tuple[str | float | None, ...]) -> str:
    """A released set or a model's thresholds as JSON; a line has few different ones."""
    return canonical_json(values)
