"""Who may come in and what they may do: passwords, log-ins and their limits, rights, the audit."""
