"""The incident record that the server writes when it loses a process (R-12)."""


def newest_incident(home, since):
    """The newest record written after `since` (wall clock), as {"process": …, "step": …}; None: there is none."""
    return None
