"""Parts of tools/drill: ledger, client, server, workload, faults. Standard library only, Python 3.11."""
