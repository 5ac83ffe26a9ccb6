"""Evidence from the runs of any trainer: reading, pairing, statistics, decisions, ledgers, reports, figures."""
