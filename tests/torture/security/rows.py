"""Rows that run the project's own tests of rights, of the HTTP API and of its pages."""

from __future__ import annotations

from tests.torture.security.bombs import FuzzedAndBombed
from tests.torture.suites import Suite

PERMISSIONS = Suite(
    "R-40",
    "permissions",
    ("tests/security/test_permission_matrix.py", "tests/security/test_topics.py"),
    "{cases} cases from the table that decides: 100 % as it says, refusals change nothing",
)
ROUTES = Suite(
    "R-42",
    "rights over HTTP",
    ("tests/http/test_rights.py",),
    "every route the application has, as nobody and as five roles, in an own and a foreign vhost, "
    "with every other method: {cases} cases, no gap",
)
FUZZED = FuzzedAndBombed(
    Suite(
        "R-43",
        "fuzzed HTTP API",
        (
            "tests/http/test_fuzz.py",
            "tests/http/test_errors.py",
            "tests/http/test_extent.py",
            "tests/security/test_bodies.py",
            "tests/security/test_limits.py",
        ),
        "{size} requests to each operation as five users, a third as many that go against its "
        "description, and walks of each user along what answers say, with a client of AMQP that "
        "goes on beside: {cases} cases, no answer of 500 (503 of health checks apart), none that "
        "differs from its description",
    )
)
SCRIPTED = Suite(
    "R-44",
    "names that would be code",
    ("tests/browser/test_hostile_names.py",),
    "15 payloads in every place on every page, in Chromium: {cases} cases; no dialog, no new "
    "element, no report of the policy",
)
SESSIONS = Suite(
    "R-45",
    "sessions and forged requests",
    (
        "tests/http/test_session.py",
        "tests/http/test_proxy.py",
        "tests/browser/test_session.py",
        "tests/security/test_tls.py",
    ),
    "{cases} cases, in Chromium and without",
)
SECRETS = Suite(
    "R-46",
    "secrets",
    ("tests/security/test_secrets.py", "tests/security/test_logs_and_audit.py"),
    "a password, a hash, a session, a token and a URI looked for in the log, the audit, every "
    "answer to every role, the history, the process list, core files and the command line: "
    "{cases} cases, no hit",
)
OUTBOUND = Suite(
    "R-47",
    "paths and outbound connections",
    ("tests/security/test_outbound.py", "tests/http/test_pages.py"),
    "{cases} cases: no file outside the data directory, no connection made, no redirect followed",
)
ROWS = (
    (PERMISSIONS, 1, "pass"),
    (ROUTES, 1, "pass"),
    (FUZZED, 1_000, "requests for each operation"),
    (SCRIPTED, 1, "pass"),
    (SESSIONS, 1, "pass"),
    (SECRETS, 1, "pass"),
    (OUTBOUND, 1, "pass"),
)
