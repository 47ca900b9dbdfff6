"""The trace: valid trace events, properly nested, complete, exact."""

import json
from collections import defaultdict

from ettrain.report import perfetto
from ettrain.report.perfetto import JOB_PID, render_perfetto, trace_events

KNOWN = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
    "C": {"name", "pid", "tid", "ts", "args"},
    "M": {"name", "pid", "tid", "args"},
}
META = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index", "thread_sort_index": "sort_index"}


def validate(events):
    """What Chrome's and Perfetto's importers need, as strictly as it can be said."""
    tracks, owners, named = defaultdict(list), {}, set()
    for event in events:
        assert set(event) - {"ph", "cname"} == KNOWN[event["ph"]], event
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert owners.setdefault(event["tid"], event["pid"]) == event["pid"], "a thread belongs to one process"
        if event["ph"] == "M":
            assert META[event["name"]] in event["args"]
            named.add((event["name"], event["tid"]))
            continue
        assert event["ts"] >= 0
        assert ("thread_name", event["tid"]) in named or event["ph"] == "C", "named before it is used"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["tid"]].append((round(event["ts"] * 1000), round(event["ts"] * 1000) + round(event["dur"] * 1000)))
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    for spans in tracks.values():
        stack = []
        assert spans == sorted(spans, key=lambda span: (span[0], -span[1])), "in order, outer ones first"
        for start, end in spans:
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1], "nested or apart"
            stack.append(end)
    return tracks


def test_the_trace_is_valid(any_story):
    trace = json.loads(render_perfetto(*any_story))
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    validate(trace["traceEvents"])


def test_every_instant_of_every_rank_is_in_its_place(any_story):
    account, job = any_story
    spent = defaultdict(int)
    for event in trace_events(account, job):
        if event["ph"] == "X" and event["cat"] == "leaf" and event["pid"] != JOB_PID:
            spent[event["args"]["leaf"]] += round(event["dur"] * 1000)
    gaps = sum(b.start - a.end for a, b in zip(account.frames, account.frames[1:]))
    within = {leaf.path: leaf.device_ns for leaf in account.ledger.leaves if leaf.device_ns}
    if "failure/reschedule" in within:
        assert gaps <= within.pop("failure/reschedule")
        spent.pop("failure/reschedule", None)
    assert spent.pop("effective", 0) == account.ledger.effective_device_ns
    if "<script>" not in job.name:
        assert spent == within


def test_the_jobs_state_is_the_wall_view(story):
    account, job = story("two_failures")
    state = [event for event in trace_events(account, job) if event["ph"] == "X" and event["pid"] == JOB_PID and event["cat"] == "leaf"]
    assert sum(round(event["dur"] * 1000) for event in state) == account.ledger.wall_ns
    assert state[0]["ts"] == 0


def test_it_holds_incidents_exceptions_background_and_steps(story):
    account, job = story("two_failures")
    events = list(trace_events(account, job))
    names = [event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] in ("thread_name", "process_name")]
    assert names[:4] == ["job dlrm-nightly", "state", "attempts", "interruptions"]
    assert {"attempt 0 (killed)", "rank 0", "rank 0 stages", "rank 0 background", "exceptions"} <= set(names)
    instants = {event["name"] for event in events if event["ph"] == "i"}
    assert instants == {"killed", "peer_lost", "RuntimeError"}
    steps = [event["args"]["step"] for event in events if event["ph"] == "C"]
    assert max(steps) == account.ledger.steps


def test_a_huge_trace_is_thinned_and_says_so(story, monkeypatch):
    monkeypatch.setattr(perfetto, "EVENTS", 200)
    trace = json.loads(render_perfetto(*story("two_failures")))
    assert "tiles are merged" in trace["otherData"]["display"]
    validate(trace["traceEvents"])
    assert len(trace["traceEvents"]) < len(list(trace_events(*story("two_failures"))))
