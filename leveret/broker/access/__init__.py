"""Access control: passwords, logins and their limits, permissions, TLS listeners, the audit log."""
