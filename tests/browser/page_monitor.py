"""Records what a page must never do.

That is: console messages, uncaught errors, dialogs, failed or refused requests, requests to another
machine, violations of the content security policy, and elements or attributes that can only come
from a name or body inserted as HTML. `assert_clean` fails on any of them; a test that provokes one
allows it with `allow`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page

# Runs in the page before its own code, also under a policy without unsafe-inline.
OBSERVER = """
(() => {
  const violations = (window.__violations = []);
  addEventListener('securitypolicyviolation', (event) => {
    violations.push(`CSP ${event.violatedDirective} ${event.blockedURI}`);
  });
  const strange = 'img,iframe,frame,object,embed,base,style,video,audio,math,marquee,' +
    'foreignObject,meta[http-equiv],form[action],[style*="expression"]';
  const own = (element) => {
    const from = element.getAttribute('src') || element.getAttribute('href') || '';
    return from === 'data:,' || (from.startsWith('/') && !from.startsWith('//'));
  };
  const check = (element) => {
    if (element.matches(strange)) violations.push(`element ${element.outerHTML.slice(0, 200)}`);
    if (element.matches('script,link') && !own(element)) {
      violations.push(`element ${element.outerHTML.slice(0, 200)}`);
    }
    for (const { name, value } of element.attributes) {
      if (value === 'data:,') continue; // an empty icon
      const runs = /^(href|src|xlink:href|action|formaction|srcdoc)$/.test(name);
      if (name.startsWith('on') || (runs && /^\\s*(javascript|data|vbscript):/i.test(value))) {
        violations.push(`attribute ${name}=${value}`);
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
# The live stream is aborted whenever a page is left; that is not a failure.
STREAM = "/api/stream"


@dataclass
class PageMonitor:
    page: Page
    origins: set[str] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    allowed: list[re.Pattern[str]] = field(default_factory=list)

    def start(self) -> None:
        self.page.add_init_script(OBSERVER)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.violations.append(f"uncaught {error}"))
        self.page.on("dialog", self._on_dialog)
        self.page.on("request", self._on_request)
        self.page.on("requestfailed", self._on_failure)
        self.page.on("response", self._on_response)

    def allow(self, pattern: str) -> None:
        """Violations that match the pattern do not fail this test."""
        self.allowed.append(re.compile(pattern))

    def reset(self) -> None:
        self.violations.clear()
        self.allowed.clear()

    def collect(self) -> None:
        """Fetch what the observer in the page has recorded, which is lost when the page is left."""
        self.violations += self.page.evaluate(
            "window.__violations ? window.__violations.splice(0) : []"
        )

    def assert_clean(self) -> None:
        self.collect()
        violations = [
            text for text in self.violations if not any(p.search(text) for p in self.allowed)
        ]
        self.violations.clear()
        assert not violations, violations

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.violations.append(f"console {message.text} {message.location.get('url', '')}")

    def _on_dialog(self, dialog: Any) -> None:
        self.violations.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        is_own = f"{parts.scheme}://{parts.netloc}" in self.origins
        if not is_own and parts.scheme not in ("blob", "data"):
            self.violations.append(f"request to {request.url}")

    def _on_failure(self, request: Any) -> None:
        # Requests of a page are aborted when it is left.
        if STREAM not in request.url and "ERR_ABORTED" not in (request.failure or ""):
            self.violations.append(f"failed {request.url} {request.failure}")

    def _on_response(self, response: Any) -> None:
        if response.status >= 400:
            self.violations.append(
                f"answer {response.status} {response.request.method} {response.url}"
            )
