"""What a page must never do, noted while it is used: the watch on a page.

It notes messages on the console, uncaught errors, dialogs, failed or refused requests, requests to
another machine, violations of the content security policy, and elements or attributes that could
only come from a name or body taken for HTML. `must_be_clean` fails on any of them; a test that
provokes a refusal names it with `expect`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page

# Runs in the page before its own code; a policy without unsafe-inline does not stop it.
OBSERVER = """
(() => {
  const found = (window.__found = []);
  addEventListener('securitypolicyviolation', (event) => {
    found.push(`CSP ${event.violatedDirective} ${event.blockedURI}`);
  });
  const strange = 'img,iframe,frame,object,embed,base,style,video,audio,math,marquee,' +
    'foreignObject,meta[http-equiv],form[action],[style*="expression"]';
  const own = (element) => {
    const from = element.getAttribute('src') || element.getAttribute('href') || '';
    return from === 'data:,' || (from.startsWith('/') && !from.startsWith('//'));
  };
  const check = (element) => {
    if (element.matches(strange)) found.push(`element ${element.outerHTML.slice(0, 200)}`);
    if (element.matches('script,link') && !own(element)) {
      found.push(`element ${element.outerHTML.slice(0, 200)}`);
    }
    for (const { name, value } of element.attributes) {
      if (value === 'data:,') continue; // an empty icon
      const runs = /^(href|src|xlink:href|action|formaction|srcdoc)$/.test(name);
      if (name.startsWith('on') || (runs && /^\\s*(javascript|data|vbscript):/i.test(value))) {
        found.push(`attribute ${name}=${value}`);
      }
    }
  };
  new MutationObserver((changes) => {
    for (const change of changes) {
      for (const node of change.addedNodes) {
        if (node.nodeType !== 1) continue;
        check(node);
        node.querySelectorAll('*').forEach(check);
      }
      if (change.type === 'attributes') check(change.target);
    }
  }).observe(document, { childList: true, subtree: true, attributes: true });
})();
"""
# The live stream is cut off whenever one leaves a page; that is not a failure.
STREAM = "/api/stream"


@dataclass
class Watch:
    page: Page
    origins: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    expected: list[re.Pattern[str]] = field(default_factory=list)

    def start(self) -> None:
        self.page.add_init_script(OBSERVER)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.notes.append(f"uncaught {error}"))
        self.page.on("dialog", self._on_dialog)
        self.page.on("request", self._on_request)
        self.page.on("requestfailed", self._on_failure)
        self.page.on("response", self._on_response)

    def expect(self, pattern: str) -> None:
        """Notes that match are meant to happen in this test."""
        self.expected.append(re.compile(pattern))

    def forget(self) -> None:
        self.notes.clear()
        self.expected.clear()

    def collect(self) -> None:
        """Take over what the page itself has noted; leaving the page loses it."""
        self.notes += self.page.evaluate("window.__found ? window.__found.splice(0) : []")

    def must_be_clean(self) -> None:
        self.collect()
        left = [note for note in self.notes if not any(p.search(note) for p in self.expected)]
        self.notes.clear()
        assert not left, left

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.notes.append(f"console {message.text} {message.location.get('url', '')}")

    def _on_dialog(self, dialog: Any) -> None:
        self.notes.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        is_own = f"{parts.scheme}://{parts.netloc}" in self.origins
        if not is_own and parts.scheme not in ("blob", "data"):
            self.notes.append(f"request to {request.url}")

    def _on_failure(self, request: Any) -> None:
        # What a page asked for and no longer wants is aborted when it is left.
        if STREAM not in request.url and "ERR_ABORTED" not in (request.failure or ""):
            self.notes.append(f"failed {request.url} {request.failure}")

    def _on_response(self, response: Any) -> None:
        if response.status >= 400:
            self.notes.append(f"answer {response.status} {response.request.method} {response.url}")
