"""Rows that run the project's own tests of permissions, of the HTTP API and of the web UI."""

from __future__ import annotations

from tests.torture.security.expensive_bodies import FuzzedAndExpensive
from tests.torture.suites import Suite

PERMISSIONS = Suite(
    "R-40",
    "permissions",
    ("tests/security/test_permission_matrix.py", "tests/security/test_topics.py"),
    "{cases} cases from the table of permissions: all as it says, refusals change nothing",
)
ROUTES = Suite(
    "R-42",
    "permissions over HTTP",
    ("tests/http/test_route_permissions.py",),
    "every route of the application, unauthenticated and as five roles, in the user's own and "
    "another vhost, with every other method: {cases} cases, no gap",
)
FUZZED = FuzzedAndExpensive(
    Suite(
        "R-43",
        "fuzzed HTTP API",
        (
            "tests/http/test_fuzz.py",
            "tests/http/test_errors.py",
            "tests/http/test_body_limits.py",
            "tests/security/test_request_bodies.py",
            "tests/security/test_limits.py",
        ),
        "{size} requests to each operation as five users, a third as many that violate its "
        "schema, and walks of each user along the links in responses, with an AMQP client at the "
        "same time: {cases} cases, no response with 500 (except 503 of health checks), none that "
        "violates its schema",
    )
)
SCRIPTED = Suite(
    "R-44",
    "names that contain code",
    ("tests/browser/test_hostile_names.py",),
    "15 payloads in every place on every page, in Chromium: {cases} cases; no dialog, no new "
    "element, no violation of the content security policy",
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
    "a password, a hash, a session, a token and a URI searched in the log, the audit, every "
    "answer to every role, the history, the process list, core files and the command line: "
    "{cases} cases, no hit",
)
OUTBOUND = Suite(
    "R-47",
    "paths and outbound connections",
    ("tests/security/test_outbound.py", "tests/http/test_static_and_docs.py"),
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
