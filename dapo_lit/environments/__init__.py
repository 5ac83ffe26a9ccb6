"""Environments of episodes with several turns: what answers the policy (docs/turns.md)."""
